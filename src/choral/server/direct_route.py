"""Routes that FastAPI describes and does not run: its layers take longer than reading the form of a request."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from choral.errors import ChoralError
from choral.server.api_errors import choral_error_response


class DirectRoute(APIRoute):
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # refuses it
            return
        request = Request(scope, receive, send)
        try:
            response: Response = await self.endpoint(request)
        except ChoralError as error:
            response = choral_error_response(request, error)
        await response(scope, receive, send)


class DirectRoutes:
    """The direct routes of an application by method and path, so that their requests need not search for them."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], DirectRoute] = {}

    def add(self, router: APIRouter) -> APIRouter:
        """Returns the router."""
        for route in router.routes:
            if isinstance(route, DirectRoute) and not route.param_convertors:
                self._routes.update({(method, route.path): route for method in route.methods or ()})
        return router

    def find(self, scope: Scope) -> DirectRoute | None:
        """The route of a request, which is then in the scope, as the router would put it there."""
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is not None:
            scope["route"] = route
        return route
