from django.contrib import admin
from django.urls import path

from . import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("stock/<str:pk>/", views.stock),
    path("stock-async/<str:pk>/", views.stock_async),
    path("several/<str:a>/<str:b>/", views.several),
    path("posted/", views.posted),
    path("function/<str:pk>/", views.by_function),
    path("user/", views.of_user),
    path("only-post/", views.only_post),
    path("class/<str:pk>/", views.Class.as_view()),
    path("class-async/<str:pk>/", views.ClassAsync.as_view()),
    path("handler/<str:pk>/", views.Handler.as_view()),
    path("streamed/<str:pk>/", views.streamed),
    path("streamed-async/<str:pk>/", views.streamed_async),
    path("boom/<str:pk>/", views.boom),
    path("boom-async/<str:pk>/", views.boom_async),
    path("waits/<str:pk>/", views.waits),
    path("lost/<str:pk>/", views.lost),
    path("own-answer/<str:pk>/", views.own_answer),
    path("inside/<str:pk>/", views.inside),
    path("forgets/<str:pk>/", views.forgets),
    path("forgets-async/<str:pk>/", views.forgets_async),
    path("increment/<str:how>/", views.increment),
    path("atomic/", views.atomic),
    path("atomic-by-hand/", views.atomic_by_hand),
    path("not-atomic/", views.not_atomic),
    path("class-atomic/", views.ClassAtomic.as_view()),
]
