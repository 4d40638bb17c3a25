"""Settings of the tests' project. ``TEST_*`` variables choose the store, the database and ATOMIC_REQUESTS."""

import os

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "django_project.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "lockwarden.django",
    "django_project",
]
MIDDLEWARE = [
    "lockwarden.django.middleware.LockwardenMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TEST_DATABASE", ":memory:"),
        "ATOMIC_REQUESTS": os.environ.get("TEST_ATOMIC_REQUESTS") == "1",
        "OPTIONS": {"timeout": 60},
    }
}
# The hashing of passwords is not what is tested.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
LOCKWARDEN = {"URL": os.environ.get("TEST_LOCKS", "memory:"), "WAIT": 60}
LOGGING_CONFIG = None
