//! `tidegate apply` and `tidegate export` against a real server.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::{Server, error, text, tidegate};

const ALL: &str = r#"
kind: Subscription
code: order-mails
client: acme
eventTypes:
  - eventType: shop:orders:order:created
    specVersion: "1.0"
  - eventTypeCode: shop:*:line:*
target: queue:mail
dispatchPool: partners
filter:
  exact: { context.region: eu }
customConfig:
  - { key: team, value: orders }
---
kind: Client
code: acme
name: Acme
---
kind: Queue
name: mail
client: acme
max_retries: 5
retry: { kind: exponential, base_ms: 1000, max_ms: 60000 }
---
kind: Pool
code: partners
concurrency: 20
---
kind: EventType
code: shop:orders:order:created
name: Order created
versions:
  - version: 1.0
    status: CURRENT
    schemaFile: schemas/order.json
  - version: 1.10
    schema:
      type: object
---
kind: Schema
name: address
schemaType: XSD
content: |
  <xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
    <xs:element name="address" type="xs:string"/>
  </xs:schema>
---
kind: Schedule
name: nightly report
cron: 30 2 * * MON-FRI
timezone: Europe/Berlin
event: { type: report.wanted, tags: [reports], queue: mail, client: acme, payload: { kind: nightly } }
"#;

const SCHEMA: &str = "{\n  \"type\": \"object\",\n  \"properties\": { \"total\": { \"type\": \"number\" } }\n}\n";

/// A folder with documents, and the server that they are applied to.
pub(crate) struct Scene {
    pub(crate) server: Server,
    pub(crate) docs: PathBuf,
}

impl Scene {
    pub(crate) fn new(documents: &str) -> Self {
        let server = Server::start(&[]);
        let docs = server.dir.path().join("docs");
        std::fs::create_dir_all(docs.join("schemas")).unwrap();
        std::fs::write(docs.join("schemas/order.json"), SCHEMA).unwrap();
        let scene = Self { server, docs };
        scene.write(documents);
        scene
    }

    pub(crate) fn write(&self, documents: &str) {
        std::fs::write(self.docs.join("all.yaml"), documents).unwrap();
    }

    pub(crate) fn command(&self, more: &[&str]) -> Command {
        let docs = self.docs.to_str().unwrap();
        let mut command = tidegate(&[["apply", "-f", docs].as_slice(), more].concat());
        command.env("TIDEGATE_URL", &self.server.url);
        command
    }

    fn apply(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    /// Applies without being asked; it must succeed.
    #[track_caller]
    pub(crate) fn applied(&self, more: &[&str]) -> String {
        let output = self.apply(&[["--yes"].as_slice(), more].concat());
        assert!(output.status.success(), "{}{}", text(&output), error(&output));
        text(&output)
    }

    /// The plan, and whether it has changes.
    #[track_caller]
    pub(crate) fn checked(&self, more: &[&str]) -> (String, bool) {
        let output = self.apply(&[["--check"].as_slice(), more].concat());
        let code = output.status.code().unwrap();
        assert!(matches!(code, 0 | 2), "{code}: {}{}", text(&output), error(&output));
        (text(&output), code == 2)
    }

    /// Applies what must be refused.
    #[track_caller]
    pub(crate) fn refused(&self, more: &[&str]) -> String {
        let output = self.apply(&[["--yes"].as_slice(), more].concat());
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        format!("{}{}", text(&output), error(&output))
    }

    fn get(&self, words: &[&str]) -> Value {
        self.server.json(words)
    }

    /// Posts what no command says.
    #[track_caller]
    fn post(&self, path: &str, body: &Value) {
        let (body, url) = (body.to_string(), format!("{}{path}", self.server.url));
        let args = ["-s", "-f", "-H", "content-type: application/json", "-d", &body, &url];
        assert!(Command::new("curl").args(args).stdout(std::process::Stdio::null()).status().unwrap().success());
    }
}

#[test]
fn a_folder_is_applied_once_and_plans_nothing_after() {
    let scene = Scene::new(ALL);
    let (plan, has_changes) = scene.checked(&[]);
    assert!(has_changes && plan.ends_with("7 to create, 0 unchanged"), "{plan}");
    assert_eq!(scene.get(&["clients", "list"]), json!([]), "--check only plans");
    let said = scene.applied(&[]);
    assert!(said.contains("version 1.0: add") && said.contains("version 1.0: finalise"), "{said}");
    let secret = said.lines().find(|line| line.starts_with("signing secret of acme/order-mails: whsec_"));
    assert!(secret.is_some(), "the secret is shown this once: {said}");
    let order: Vec<usize> =
        ["Client acme is", "Queue acme/mail is", "Pool partners is", "EventType shop", "Schema address is"]
            .into_iter()
            .chain(["Subscription acme/order-mails is", "Schedule nightly report is"])
            .map(|line| said.rfind(line).unwrap_or_else(|| panic!("{line}: {said}")))
            .collect();
    assert!(order.is_sorted(), "{said}");
    let (plan, has_changes) = scene.checked(&["--prune"]);
    assert!(!has_changes && plan == "nothing to change; 7 unchanged", "{plan}");
    assert_eq!(scene.applied(&["--prune"]), "nothing to change; 7 unchanged");
    let found = scene.get(&["subscriptions", "show", "order-mails"]);
    assert_eq!((&found["timeoutSeconds"], &found["eventTypes"][0]["specVersion"]), (&json!(30), &json!("1.0")));
    let schema = scene.server.run(&["types", "show", "shop:orders:order:created", "--schema", "1.0"]);
    assert_eq!(schema, SCHEMA.trim());

    // What is paused by hand stays so; what the documents say is changed back.
    scene.server.run(&["subscriptions", "pause", "order-mails"]);
    assert!(!scene.checked(&[]).1);
    scene.write(
        &ALL.replace("concurrency: 20", "concurrency: 30").replace("    status: CURRENT\n", "    status: DEPRECATED\n"),
    );
    let (plan, _) = scene.checked(&[]);
    assert!(plan.contains("concurrency: 20 -> 30") && plan.contains("version 1.0: deprecate"), "{plan}");
    scene.applied(&[]);
    assert!(!scene.checked(&[]).1);
    scene.server.stop();
}

#[test]
fn an_export_plans_nothing_and_makes_the_same_elsewhere() {
    let scene = Scene::new(ALL);
    scene.applied(&[]);
    scene.server.run(&["queues", "pause", "default"]);
    scene.server.run(&["types", "create", "a:b:c:d", "--description", "line one\nline two: \"quoted\""]);
    scene.server.run(&["types", "archive", "a:b:c:d"]);
    let named = scene.server.run(&["types", "create", "a:b:c:e"]);
    let linked = json!({
        "name": "An order", "description": "What is ordered.", "mimeType": "application/json",
        "schemaType": "JSON_SCHEMA", "content": "{}", "eventTypeId": named.split(": ").last(), "version": "1.0",
    });
    scene.post("/api/schemas", &linked);
    scene.server.run(&["types", "finalise", "a:b:c:e", "1.0"]);
    let other = Scene::new("");
    let exported = scene.server.run(&["export"]);
    assert!(
        !exported.contains("whsec_") && !exported.contains("createdAt") && !exported.contains("\nid:"),
        "{exported}"
    );
    std::fs::write(other.docs.join("all.yaml"), &exported).unwrap();
    std::fs::write(scene.docs.join("all.yaml"), &exported).unwrap();
    let (plan, has_changes) = scene.checked(&[]);
    assert!(!has_changes, "{plan}\n{exported}");
    other.applied(&[]);
    assert_eq!(other.server.run(&["export"]), exported);
    assert!(exported.contains("schemaName: An order") && exported.matches("schemaName").count() == 1, "{exported}");
    let schema = &other.get(&["types", "show", "a:b:c:e"])["specVersions"][0];
    assert_eq!((&schema["schemaName"], &schema["schemaDescription"]), (&linked["name"], &linked["description"]));
    let as_json = scene.server.run(&["export", "--json"]);
    std::fs::write(scene.docs.join("all.yaml"), "").unwrap();
    std::fs::write(scene.docs.join("all.json"), &as_json).unwrap();
    assert!(!scene.checked(&[]).1, "{as_json}");
    let some = scene.server.run(&["export", "pools", "Client"]);
    assert_eq!(some.matches("kind: ").count(), 2, "{some}");
    // Through a pipe there is no terminal to ask on.
    let script = r#""$0" export | "$0" apply -f - --check"#;
    let mut piped = Command::new("sh");
    piped.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).env("TIDEGATE_URL", &other.server.url);
    assert_eq!(piped.output().unwrap().status.code(), Some(0));
    other.server.stop();
    scene.server.stop();
}

#[test]
fn only_what_the_set_has_made_is_pruned() {
    let scene = Scene::new("kind: Pool\ncode: made\n---\nkind: Pool\ncode: hand\nname: renamed\n");
    let post = |code: &str| scene.post("/api/dispatch-pools", &json!({ "code": code, "name": code }));
    post("hand");
    let said = scene.applied(&[]);
    assert!(said.contains("not made by a set"), "{said}");
    scene.write("");
    let (plan, _) = scene.checked(&[]);
    assert_eq!(plan, "nothing to change; 0 unchanged", "without --prune nothing is deleted");
    let (plan, _) = scene.checked(&["--prune"]);
    assert!(plan.contains("delete") && plan.contains("made") && !plan.contains("hand"), "{plan}");

    // Another set does not see it as its own, and cannot have it without saying so.
    let (plan, has_changes) = scene.checked(&["--prune", "--set", "other"]);
    assert!(!has_changes, "{plan}");
    scene.write("kind: Pool\ncode: made\n");
    let said = scene.refused(&["--set", "other"]);
    assert!(said.contains("belongs to the set default") && said.contains("--adopt"), "{said}");
    let (plan, has_changes) = scene.checked(&["--set", "renamed", "--renamed-from", "default"]);
    assert!(!has_changes, "{plan}");
    scene.applied(&["--set", "renamed", "--renamed-from", "default"]);
    assert!(scene.refused(&[]).contains("belongs to the set renamed"));
    scene.applied(&["--set", "other", "--adopt"]);

    // What was deleted and made again by hand is not the set's any more.
    scene.write("");
    assert!(!scene.checked(&["--prune", "--set", "renamed"]).1);
    assert!(scene.checked(&["--prune", "--set", "other"]).1);
    scene.applied(&["--prune", "--set", "other"]);
    post("made");
    assert!(!scene.checked(&["--prune", "--set", "other"]).1);
    let left = scene.server.run(&["export", "pools"]);
    assert!(left.contains("code: made") && left.contains("name: renamed"), "{left}");
    scene.server.stop();
}

#[test]
fn a_step_that_is_refused_ends_the_apply_and_the_next_one_goes_on() {
    let bad = "kind: Pool\ncode: a\n---\nkind: Pool\ncode: b\nconcurrency: 0\n---\nkind: Pool\ncode: c\n";
    let scene = Scene::new(bad);
    let said = scene.refused(&[]);
    assert!(
        said.contains("Pool b: concurrency must be 1 to 10000") && said.contains("1 of 3 steps were taken"),
        "{said}"
    );
    let json = scene.command(&["--yes", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["error"].as_str().unwrap().contains("concurrency"), "{json}");
    scene.write(&bad.replace("concurrency: 0", "concurrency: 1"));
    scene.applied(&[]);
    scene.write("");
    let said = scene.applied(&["--prune"]);
    assert!(["a", "b", "c"].iter().all(|code| said.contains(&format!("Pool {code} is deleted"))), "{said}");
    assert!(!scene.server.run(&["export"]).contains("Pool"));
    scene.server.stop();
}

#[test]
fn versions_and_references_are_judged_before_anything_is_made() {
    let scene = Scene::new(ALL);
    scene.applied(&[]);
    std::fs::write(scene.docs.join("schemas/order.json"), r#"{"type": "array"}"#).unwrap();
    let said = scene.refused(&[]);
    assert!(
        said.contains("version 1.0 is CURRENT and its schema differs") && said.contains("add a new version"),
        "{said}"
    );
    scene.write("kind: Subscription\ncode: x\ntarget: queue:nowhere\ndispatchPool: none\neventTypes: [{ eventType: a:b:c:d }]\n");
    let said = scene.refused(&[]);
    for why in [
        "all.yaml:1: target: there is no queue nowhere",
        "dispatchPool: there is no pool none",
        "no event type a:b:c:d",
    ] {
        assert!(said.contains(why), "{said}");
    }
    scene.write("kind: Pool\ncode: a\n---\nkind: Pool\ncode: b\nconcurency: 3\n");
    let said = scene.refused(&[]);
    assert!(said.contains("all.yaml:6: concurency is not known; did you mean concurrency?"), "{said}");
    assert!(!scene.server.run(&["export", "pools"]).contains("code: a\n"), "nothing was made");
    let unasked = scene.command(&[]).stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(unasked.status.code(), Some(1), "what is wrong is told before anybody is asked");
    scene.write("kind: Pool\ncode: a\n");
    let unasked = scene.command(&[]).stdin(std::process::Stdio::null()).output().unwrap();
    assert!(error(&unasked).contains("--yes"), "{}", error(&unasked));
    let usage = tidegate(&["apply", "--chek"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(1), "2 is kept for a plan that has changes");
    scene.server.stop();
}

#[test]
fn secrets_go_into_a_file_of_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let one = "kind: Subscription\ncode: one\ntarget: queue:default\neventTypes: [{ eventTypeCode: 'a:*:*:*' }]\n";
    let scene = Scene::new(one);
    let file = scene.server.dir.path().join("secrets");
    let said = scene.applied(&["--secrets-file", file.to_str().unwrap()]);
    assert!(!said.contains("whsec_"), "{said}");
    let line: Value = serde_json::from_str(std::fs::read_to_string(&file).unwrap().trim()).unwrap();
    assert_eq!(line["code"], "one");
    assert!(line["signingSecret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    scene.write(&one.replace("one", "two"));
    let json = scene.command(&["--yes", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["secrets"][0]["signingSecret"].as_str().unwrap().starts_with("whsec_"), "{json}");
    scene.server.stop();
}

/// However far an apply gets before it is killed, the next one completes it, and everything is the set's.
#[test]
fn a_killed_apply_is_completed_and_loses_nothing() {
    let many: String = (0..40).map(|at| format!("---\nkind: Pool\ncode: p{at}\n")).collect();
    let scene = Scene::new(&many);
    for _ in 0..6 {
        let mut child = scene.command(&["--yes"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        // The plan is printed right before the first step.
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    scene.applied(&[]);
    assert!(!scene.checked(&[]).1);
    scene.write("");
    scene.applied(&["--prune"]);
    assert!(!scene.server.run(&["export"]).contains("kind: Pool"));
    scene.server.stop();
}

#[test]
fn the_guide_does_what_it_says() {
    let server = Server::start(&[]);
    let guide = include_str!("../../../../docs/guides/apply.md");
    let blocks: Vec<&str> = guide.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 3);
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    for block in blocks {
        let mut shell = Command::new("sh");
        shell.args(["-ec", block]).current_dir(server.dir.path());
        let output = shell.env("PATH", &path).env("TIDEGATE_URL", &server.url).output().unwrap();
        assert!(output.status.success(), "{block}: {}{}", text(&output), error(&output));
    }
    let all = std::fs::read_to_string(server.dir.path().join("all.yaml")).unwrap();
    assert!(all.contains("code: shop:orders:order:created") && all.contains("kind: Schedule"), "{all}");
    server.stop();
}
