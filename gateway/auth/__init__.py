"""Who calls and what they may do, as the user's ``langgraph_sdk.Auth`` says."""
