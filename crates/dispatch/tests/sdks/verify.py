"""Verifies webhooks with the official library of Standard Webhooks, and signs their bodies with it.

    python verify.py < cases.json

A case is {"secret", "headers", "body"}. Says on standard output, for each, whether it was verified and how the library
signs its id, time and body itself.
"""

import json
import sys
from datetime import datetime, timezone

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

results = []
for case in json.load(sys.stdin):
    webhook, headers = Webhook(case["secret"]), case["headers"]
    try:
        webhook.verify(case["body"].encode(), headers, json_parse=False)
        verified = True
    except WebhookVerificationError:
        verified = False
    at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), tz=timezone.utc)
    results.append({"verified": verified, "signed": webhook.sign(headers["webhook-id"], at, case["body"])})
print(json.dumps(results))
