"""Everybody is who they say they are, and sees what they made."""

from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> dict[str, object]:
    if not authorization:
        raise Auth.exceptions.HTTPException(status_code=401, detail="who are you?")
    return {"identity": authorization, "permissions": ["all"], "team": f"of {authorization}"}


@auth.on
async def own(ctx: Auth.types.AuthContext, value: dict[str, object]) -> dict[str, str]:
    owner = {"owner": ctx.user.identity, "team": ctx.user["team"]}
    metadata = value.setdefault("metadata", {})
    assert isinstance(metadata, dict)
    metadata.update(owner)
    return owner


@auth.on.store
async def any_store(ctx: Auth.types.AuthContext, value: dict[str, object]) -> bool:
    return True
