"""Questions to the inspector, which has the compiled graphs that the gateway never imports."""

from typing import Any

from gateway.context import Context


async def ask(context: Context, op: str, args: dict[str, Any]) -> tuple[int, bytes]:
    """Status and JSON body of the inspector's answer. Raises InspectorUnavailable."""
    return await context.dispatcher.inspect(op, args, context.settings.inspect_timeout_seconds)
