"""What a run's kwargs hold for its graph alone, and nobody needs once the run is over."""

SHOWN_OF_USERS = ("identity", "is_authenticated", "display_name", "permissions", "kind")
"""Of who asked for a run. What else authentication returned may be tokens."""

_USER = f"""
SELECT coalesce(json_object_agg(u.key, u.value), '{{}}') FROM json_each(o.value) u
WHERE u.key IN ({", ".join(f"'{name}'" for name in SHOWN_OF_USERS)})
"""

# What was sent as context stands in ``configurable`` too, unless something stronger stands there.
# Without one there is nothing to join, and all stays.
_CONFIGURABLE = f"""
SELECT coalesce(json_object_agg(o.key, CASE
    WHEN o.key = 'langgraph_auth_user' AND json_typeof(o.value) = 'object' THEN ({_USER})
    ELSE o.value END), '{{}}')
FROM json_each(c.value) o LEFT JOIN json_each(sent.context) s ON s.key = o.key
WHERE s.value::text IS DISTINCT FROM o.value::text
"""

_CONFIG = f"""
SELECT json_object_agg(c.key, CASE c.key WHEN 'configurable' THEN ({_CONFIGURABLE})
    ELSE c.value END)
FROM json_each(k.value) c
"""

# To search a text is cheaper than to parse it, and an input may be large: what is asked of the
# whole is asked once (OFFSET keeps Postgres from asking again for each key).
WITHOUT_SECRETS = f"""
CASE WHEN strpos(r.kwargs::text, '"__context_provided__":true') = 0
      AND strpos(r.kwargs::text, '"langgraph_auth_user":{{') = 0
THEN r.kwargs
ELSE (
    SELECT json_object_agg(k.key, CASE
        WHEN k.key = 'context' AND sent.as_context THEN '{{}}'
        WHEN k.key = 'config' THEN ({_CONFIG})
        ELSE k.value END)
    FROM json_each(r.kwargs) k, (
        SELECT as_context,
            CASE WHEN as_context AND json_typeof(context) = 'object' THEN context END AS context
        FROM (SELECT r.kwargs->'context' AS context, coalesce(
            r.kwargs #>> '{{config,configurable,__context_provided__}}' = 'true', false
        ) AS as_context OFFSET 0) asked) sent
) END
"""
"""SQL of the kwargs of the run ``r`` without its context, as which secrets are sent, and without
what only the graph may know of the user. What was sent as ``configurable`` alone stays."""
