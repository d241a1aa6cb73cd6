"""Whoever has a token is known; strangers may do nothing."""

from typing import Any

from langgraph_sdk import Auth
from starlette.requests import Request

auth = Auth()


@auth.authenticate
async def authenticate(
    authorization: str | None, body: Any, request: Request
) -> Auth.types.MinimalUserDict:
    """Reads all that there is to read: a broken body must not hurt here either."""
    if request.method in ("POST", "PUT", "PATCH"):
        await request.body()
    name = (authorization or "").removeprefix("Bearer token-")
    if name == (authorization or ""):
        raise Auth.exceptions.HTTPException(status_code=401, detail="no token")
    return {"identity": name}


@auth.on
async def own(ctx: Auth.types.AuthContext, value: dict) -> Any:
    if ctx.user.identity == "stranger":
        return False
    if ctx.action in ("create", "create_run", "update"):
        value["metadata"] = {**(value.get("metadata") or {}), "owner": ctx.user.identity}
    return {"owner": ctx.user.identity}


@auth.on.store
async def scope(ctx: Auth.types.AuthContext, value: dict) -> bool:
    value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))
    return ctx.user.identity != "stranger"
