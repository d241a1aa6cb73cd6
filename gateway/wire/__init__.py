"""The JSON that LangGraph clients speak."""
