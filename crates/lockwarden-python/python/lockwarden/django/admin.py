"""The locks in the admin: to look at, and to revoke for whoever may."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from django.contrib import admin, messages
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_protect

from .._errors import Error
from . import locks
from .models import Lock
from .store import warden
from .text import seconds, shown

PER_PAGE = 100


@admin.register(Lock)
class LockAdmin(admin.ModelAdmin):  # type: ignore[misc,type-arg,unused-ignore]
    """Names and labels come from anybody who may acquire a lock: they are shown as text only."""

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_revoke_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("lockwarden.revoke_lock"))

    def get_urls(self) -> List[Any]:
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="lockwarden_lock_changelist"),
            path("revoke/", view(self.revoke_view), name="lockwarden_lock_revoke"),
        ]

    def changelist_view(self, request: Any, extra_context: Optional[Dict[str, Any]] = None) -> Any:
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        query = request.GET.get("q", "")
        context = self._context(request, "Locks", {"q": query, "error": None, "rows": [], "page": None})
        try:
            its = warden()
            found = [name for name in locks.names(its) if query in name]
            page = Paginator(found, PER_PAGE).get_page(request.GET.get("p"))
            context["place"] = shown(its.place)
            context["page"] = page
            context["rows"] = [_row(locks.view(its, name)) for name in page]
        except Error as error:
            context["error"] = shown(str(error))
        context.update(extra_context or {})
        return TemplateResponse(request, "admin/lockwarden/locks.html", context)

    @method_decorator(csrf_protect)
    def revoke_view(self, request: Any) -> Any:
        """GET shows who would lose the lock; POST takes it away from those who were shown, and from nobody else."""
        if not (self.has_view_permission(request) and self.has_revoke_permission(request)):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        name = (request.POST if request.method == "POST" else request.GET).get("name", "")
        back = HttpResponseRedirect(reverse(f"{self.admin_site.name}:lockwarden_lock_changelist"))
        try:
            its = warden()
            if request.method == "POST" and request.POST.get("confirmed") == "yes":
                self._revoke(request, its, name)
                return back
            view = locks.view(its, name)
        except Error as error:
            self.message_user(request, shown(str(error)), messages.ERROR)
            return back
        if not view["holders"]:
            self.message_user(request, f"Nobody holds the lock {shown(name)}.", messages.WARNING)
            return back
        context = self._context(request, "Revoke a lock", {"row": _row(view)})
        return TemplateResponse(request, "admin/lockwarden/revoke.html", context)

    def _revoke(self, request: Any, its: Any, name: str) -> None:
        at_once = request.POST.get("at_once") == "yes"
        revoked = locks.revoke(its, name, request.POST.getlist("holder"), at_once=at_once)
        for holder in revoked:
            who = shown(holder.get("label") or "another kind of client")
            ends = f"it ends in {seconds(holder['ends_in_s'])}" if holder["ends_in_s"] else "it has ended"
            text = f"The lock {shown(name)} was revoked from {who}: {ends}."
            LogEntry.objects.create(
                user_id=request.user.pk,
                content_type_id=ContentType.objects.get_for_model(Lock, for_concrete_model=False).pk,
                object_id=name,
                object_repr=shown(name)[:200],
                action_flag=DELETION,
                change_message=text,
            )
            self.message_user(request, text, messages.SUCCESS)
        if not revoked:
            self.message_user(
                request,
                f"Nobody who was shown holds the lock {shown(name)} any more: nothing was revoked.",
                messages.WARNING,
            )

    def _context(self, request: Any, title: str, more: Dict[str, Any]) -> Dict[str, Any]:
        return {
            **self.admin_site.each_context(request),
            "opts": self.model._meta,
            "title": title,
            "may_revoke": self.has_revoke_permission(request),
            **more,
        }


def _row(view: Dict[str, Any]) -> Dict[str, Any]:
    """A lock for the templates, whose own escaping does the rest."""
    return {
        "name": view["name"],
        "shown": shown(view["name"]),
        "waiting": len(view["queue"]),
        "holders": [
            {
                "id": holder["id"],
                "label": shown(holder.get("label") or ("another kind of client" if holder["foreign"] else "–")),
                "where": shown(f"{holder['host']}, pid {holder['pid']}") if holder.get("host") else "–",
                "site": shown(holder.get("site") or ""),
                "held": seconds(holder.get("held_s")),
                "left": seconds(holder.get("lease_left_s")),
                "state": shown(str(holder.get("state") or "held")),
                "alive": holder.get("alive"),
            }
            for holder in view["holders"]
        ],
    }
