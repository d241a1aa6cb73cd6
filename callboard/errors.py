"""What a person can mend: shown as one sentence, without a traceback.

StartError
├── ConfigError      langgraph.json is broken (callboard.config)
├── EmbeddedError    an embedded server cannot be started (callboard.embedded)
└── LaunchError      folder, port or service cannot be used (callboard.launch)
"""


class StartError(Exception):
    """The server cannot start like this; the text says what came and what was expected."""
