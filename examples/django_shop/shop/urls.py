from django.urls import path

from . import flawed, views

ORDER = "<int:customer>/<int:product>/<slug:coupon>/<slug:branch>/"

urlpatterns = [
    path("order/" + ORDER, views.order),
    path("flawed/" + ORDER, flawed.order),
]
