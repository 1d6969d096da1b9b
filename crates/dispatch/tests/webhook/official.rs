//! The official libraries of Standard Webhooks, run from `tests/sdks`, verify what is signed here and sign the same.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use serde_json::{Value, json};
use tidegate_dispatch::webhook::signature::{
    SignedHeaders, SigningSecret, TOLERANCE, Unverified, VerifyingSecret, sign, verify,
};

/// What `scripts/install-sdks` was told to install: these files are copied to where it installed them.
const PINNED: [(&str, &str); 2] = [
    ("requirements.txt", include_str!("../sdks/requirements.txt")),
    ("package.json", include_str!("../sdks/package.json")),
];
const MISSING: &str = "run scripts/install-sdks, or scripts/test, which runs it";

/// A webhook, and a secret to verify it with.
struct Case {
    what: String,
    secret: String,
    headers: [String; 3],
    body: String,
    is_right: bool,
}

#[test]
fn python() {
    let mut program = Command::new(installed("python/bin/python"));
    program.arg(program_file("verify.py"));
    check(program);
}

#[test]
fn javascript() {
    let mut program = Command::new("node");
    program.arg(program_file("verify.cjs")).env("NODE_PATH", installed("node_modules"));
    check(program);
}

#[test]
fn rust() {
    for case in cases() {
        let mut headers = HeaderMap::new();
        for (name, value) in ["webhook-id", "webhook-timestamp", "webhook-signature"].into_iter().zip(&case.headers) {
            headers.insert(name, value.parse().unwrap());
        }
        let library = standardwebhooks::Webhook::new(&case.secret).unwrap();
        assert_eq!(library.verify(case.body.as_bytes(), &headers).is_ok(), case.is_right, "{}", case.what);
    }
}

/// Runs a program with all cases.
fn check(mut program: Command) {
    let cases = cases();
    let given: Vec<Value> = cases
        .iter()
        .map(|case| {
            let [id, timestamp, signature] = &case.headers;
            let headers = json!({ "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signature });
            json!({ "secret": case.secret, "headers": headers, "body": case.body })
        })
        .collect();
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = program.spawn().unwrap_or_else(|error| panic!("{error}: {MISSING}"));
    child.stdin.take().unwrap().write_all(json!(given).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let results: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results.len(), cases.len());
    for (case, result) in cases.iter().zip(&results) {
        assert_eq!(result["verified"], case.is_right, "{}", case.what);
        let secret: VerifyingSecret = case.secret.parse().unwrap();
        let [id, timestamp, _] = &case.headers;
        let headers = SignedHeaders { id, timestamp, signature: result["signed"].as_str().unwrap() };
        let verified = verify(&[secret], headers, case.body.as_bytes(), timestamp.parse().unwrap(), TOLERANCE);
        assert_eq!(verified, Ok(()), "{}: signed by the library", case.what);
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Bodies and secrets of all lengths, alone and during rotation, and what was changed.
fn cases() -> Vec<Case> {
    let secret = |length: usize, seed: u8| {
        let bytes: Vec<u8> =
            (0..length).map(|at| seed.wrapping_add(u8::try_from(at).unwrap()).wrapping_mul(31)).collect();
        format!("whsec_{}", STANDARD.encode(bytes))
    };
    let key = format!("whsk_{}", STANDARD.encode([7; 32]));
    let bodies = [
        String::new(),
        "{}".to_owned(),
        "{\"a\": \"gr\u{f6}\u{df}er \u{1f600} \u{65e5}\u{672c}\", \"b\": 1e400}\r\n".to_owned(),
        "not JSON\u{0}. with.dots".to_owned(),
        "x".repeat(100_000),
    ];
    let mut cases = Vec::new();
    for (number, body) in bodies.iter().enumerate() {
        for length in [24, 32, 33, 63, 64] {
            let (old, new) = (secret(length, 1), secret(length, 100));
            let id = format!("job_{number}_{length}");
            let mut add = |what: &str, secrets: &[&str], by: &str, is_right: bool, change: &dyn Fn(&mut Case)| {
                let signing: Vec<SigningSecret> = secrets.iter().map(|text| text.parse().unwrap()).collect();
                let headers = sign(&signing, &id, now(), body.as_bytes()).unwrap();
                let headers = headers.map(|(_, value)| value.to_str().unwrap().to_owned());
                let what = format!("{what}, body {number}, secret of {length} bytes");
                let mut case = Case { what, secret: by.to_owned(), headers, body: body.clone(), is_right };
                change(&mut case);
                cases.push(case);
            };
            let same = |_: &mut Case| {};
            add("one secret", &[&old], &old, true, &same);
            add("rotation, the old one", &[&new, &old], &old, true, &same);
            add("rotation, the new one", &[&new, &old], &new, true, &same);
            add("both versions", &[&key, &new], &new, true, &same);
            add("another secret", &[&old], &new, false, &same);
            add("a key alone", &[&key], &old, false, &same);
            add("another body", &[&old], &old, false, &|case| case.body.push(' '));
            add("another id", &[&old], &old, false, &|case| case.headers[0].push('x'));
            add("another time", &[&old], &old, false, &|case| case.headers[1] = (now() - 7).to_string());
            add("an old time", &[&old], &old, false, &|case| case.headers[1] = (now() - 1_000).to_string());
            add("another signature", &[&old], &old, false, &|case| {
                let first = if case.headers[2].as_bytes()[3] == b'A' { "B" } else { "A" };
                case.headers[2].replace_range(3..4, first);
            });
            add("another version", &[&old], &old, false, &|case| case.headers[2].replace_range(1..2, "9"));
        }
    }
    cases
}

/// What the libraries are asked is answered here the same.
#[test]
fn our_own() {
    for case in cases() {
        let [id, timestamp, signature] = &case.headers;
        let headers = SignedHeaders { id, timestamp, signature };
        let verified = verify(&[case.secret.parse().unwrap()], headers, case.body.as_bytes(), now(), TOLERANCE);
        let expected = match case.what.starts_with("an old time") {
            true => Err(Unverified::TooOld),
            false if case.is_right => Ok(()),
            false => Err(Unverified::Signature),
        };
        assert_eq!(verified, expected, "{}", case.what);
    }
}

/// A path below the folder of the libraries.
fn installed(path: &str) -> PathBuf {
    let libraries = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("sdks").join("webhooks");
    for (file, pinned) in PINNED {
        let found = std::fs::read_to_string(libraries.join(file)).unwrap_or_default();
        assert!(found == pinned, "{} is not as in tests/sdks: {MISSING}", libraries.join(file).display());
    }
    let path = libraries.join(path);
    assert!(path.exists(), "there is no {}: {MISSING}", path.display());
    path
}

fn program_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdks").join(name)
}
