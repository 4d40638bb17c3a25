"""Settings of the example. SHOP_DATABASE and SHOP_REDIS choose where its data and its locks are."""

import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent.parent
REDIS = os.environ.get("SHOP_REDIS", "redis://127.0.0.1:6379/1")

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "an example, and no secret")
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["lockwarden.django", "shop"]
MIDDLEWARE = ["lockwarden.django.middleware.LockwardenMiddleware"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", str(HERE / "shop.sqlite3")),
        # Those who write wait for each other.
        "OPTIONS": {"timeout": 60},
    }
}
# An order waits for its turn for as long as a customer would.
LOCKWARDEN = {"URL": REDIS, "PREFIX": "shop:", "WAIT": 60}
