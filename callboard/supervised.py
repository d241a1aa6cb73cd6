"""Whether supervisord has told this process to stop before it could hear.

supervisord forks, and the child becomes the program a moment later. A signal that comes in between
is heard by supervisord's own handler in the child, and lost: a worker that was being started again
when everything was told to stop would go on, and be killed in the end. So a program asks once.
"""

import os
import socket
from contextlib import closing
from xmlrpc.client import Fault, ServerProxy

_PATIENCE_SECONDS = 1.0
"""A supervisord that is frozen tells nobody anything, and keeps nobody from starting."""


def is_to_stop() -> bool:
    """Whether supervisord stops this process, or everything. False without a supervisord."""
    url = os.environ.get("SUPERVISOR_SERVER_URL")
    name = os.environ.get("SUPERVISOR_PROCESS_NAME")
    if not url or not name:
        return False
    from supervisor.xmlrpc import Faults, SupervisorTransport

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE_SECONDS)
    try:
        with closing(SupervisorTransport(None, None, url)) as transport:
            server = ServerProxy("http://supervisord", transport=transport)
            info = server.supervisor.getProcessInfo(f"{os.environ['SUPERVISOR_GROUP_NAME']}:{name}")
    except Fault as fault:
        return bool(fault.faultCode == Faults.SHUTDOWN_STATE)
    except Exception:  # noqa: BLE001  # whatever keeps it from answering
        return False
    finally:
        socket.setdefaulttimeout(before)
    return isinstance(info, dict) and info.get("statename") == "STOPPING"
