"""Who calls says so by a token; what somebody makes is theirs."""

import os
import sys

from langgraph_sdk import Auth

auth = Auth()
PREFIX = os.environ["GUARDED_PREFIX"]  # from langgraph.json, also in the gateway


@auth.authenticate
def authenticate(authorization: str | None) -> Auth.types.MinimalUserDict:
    name = (authorization or "").removeprefix("Bearer ")
    if not name.startswith(PREFIX):
        raise Auth.exceptions.HTTPException(status_code=401, detail="no token")
    # Graphs must not be imported where this runs.
    assert "whoami" not in sys.modules
    return {
        "identity": name.removeprefix(PREFIX),
        "permissions": ["use"],
        "team": "red",
        "key": "CANARY-of-the-user",
    }


@auth.on
async def own(ctx: Auth.types.AuthContext, value: dict):
    if ctx.action in ("create", "create_run", "update"):
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.store
async def scope(ctx: Auth.types.AuthContext, value: dict):
    value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))
