"""`python -m sakiyomi.fake_engine`."""

import sys

from sakiyomi.fake_engine.command import main

sys.exit(main())
