"""What an arm's server was at its beginning, also where the clock began anew in between."""

import msgspec
from decide_makers import request

from sakiyomi.same_server import server_changes


def signed(repeat, sent_at_s, fingerprint):
    made = request("a", "c", repeat, 50.0)
    return msgspec.structs.replace(made, sent_at_s=sent_at_s, system_fingerprint=fingerprint)


def test_a_run_resumed_after_a_reboot_begins_where_it_began():
    """The monotonic clock counts from the boot: the later pass has the earlier instants."""
    requests = [signed(1, 5000.0, "old"), signed(2, 5001.0, "old"), signed(3, 20.0, "new")]
    (change,) = server_changes("a", requests, {})
    assert change.windows == {3}
    assert change.caution.detail["values"] == ["old", "new"]
