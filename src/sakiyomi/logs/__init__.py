"""Own traffic as a scenario: logs of any form, masked and sampled."""
