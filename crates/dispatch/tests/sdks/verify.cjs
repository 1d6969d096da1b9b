// Verifies webhooks with the official library of Standard Webhooks, and signs their bodies with it.
//
//     NODE_PATH=…/node_modules node verify.cjs < cases.json
//
// A case is {"secret", "headers", "body"}. Says on standard output, for each, whether it was verified and how the library
// signs its id, time and body itself.

const { readFileSync } = require("node:fs");
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

function check({ secret, headers, body }) {
  const webhook = new Webhook(secret);
  const at = new Date(Number(headers["webhook-timestamp"]) * 1000);
  const signed = webhook.sign(headers["webhook-id"], at, body);
  try {
    webhook.verify(Buffer.from(body), headers, { jsonParse: false });
    return { verified: true, signed };
  } catch (error) {
    if (error instanceof WebhookVerificationError) return { verified: false, signed };
    throw error;
  }
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(check)));
