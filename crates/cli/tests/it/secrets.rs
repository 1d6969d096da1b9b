//! `tidegate secrets`, `accounts` and `subscriptions rotate-secret`.

use serde_json::Value;

use crate::{Server, error, text, tidegate};

#[test]
fn keys_are_made_for_settings_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    let file = file.to_str().unwrap();
    let printed = tidegate(&["secrets", "new-key"]).output().unwrap();
    assert!(text(&printed).starts_with("tgkey_") && !error(&printed).contains("tgkey_"), "{}", error(&printed));
    let written = tidegate(&["secrets", "new-key", "--file", file]).output().unwrap();
    assert!(written.status.success() && text(&written).is_empty(), "{}", error(&written));
    let again = tidegate(&["secrets", "new-key", "--file", file]).output().unwrap();
    assert!(!again.status.success() && error(&again).contains("--add"), "{}", error(&again));
    assert!(tidegate(&["secrets", "new-key", "--file", file, "--add"]).status().unwrap().success());
    let keys = std::fs::read_to_string(file).unwrap();
    assert_eq!(keys.lines().filter(|line| line.starts_with("tgkey_")).count(), 2);
    let key = text(&printed);
    let flag = tidegate(&["config", "--set", &format!("secrets.key={key}")]).output().unwrap();
    assert!(!flag.status.success() && !error(&flag).contains(&key), "{}", error(&flag));
    let shown = tidegate(&["config"]).env("TIDEGATE_SECRETS_KEY", &key).output().unwrap();
    assert!(shown.status.success() && text(&shown).contains("***") && !text(&shown).contains(&key), "{}", text(&shown));
    let missing = tidegate(&["serve", "--set", "secrets.key_file=/nowhere/keys"]).output().unwrap();
    assert!(!missing.status.success() && error(&missing).contains("secrets.key_file"), "{}", error(&missing));
}

#[test]
fn accounts_are_made_and_their_secrets_are_replaced_beside_a_server() {
    let server = Server::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "t0ken\n").unwrap();
    let token = token.to_str().unwrap();
    let made = server.run(&["accounts", "create", "shop", "--auth", "bearer", "--secret-file", token]);
    assert!(made.starts_with("whsec_"), "{made}");
    let missing =
        tidegate(&["accounts", "create", "other", "--auth", "bearer"]).env("TIDEGATE_URL", &server.url).output();
    let missing = missing.unwrap();
    assert!(!missing.status.success() && error(&missing).contains("token is required"), "{}", error(&missing));
    let by_variable = tidegate(&["accounts", "change", "shop", "--auth", "basic", "--username", "tide"])
        .env("TIDEGATE_URL", &server.url)
        .env("TIDEGATE_ACCOUNT_SECRET", "pa55")
        .output()
        .unwrap();
    assert!(by_variable.status.success(), "{}", error(&by_variable));
    assert!(server.run(&["accounts", "change", "shop", "--name", "Shop"]).contains("shop is changed"));
    let shown = server.json(&["accounts", "show", "shop"]);
    assert_eq!((&shown["name"], &shown["username"]), (&"Shop".into(), &"tide".into()));
    assert!(server.run(&["accounts", "list"]).contains("BASIC"));
    assert!(server.run(&["accounts", "rotate", "shop", "--overlap", "60"]).starts_with("whsec_"));
    assert!(server.run(&["accounts", "rotate", "shop", "--scheme", "v1a"]).starts_with("whpk_"));

    server.run(&["subscriptions", "create", "mails", "--type", "a:b:c:d", "--target", "https://example.com/hook"]);
    assert!(server.run(&["subscriptions", "rotate-secret", "mails", "--overlap", "0"]).starts_with("whsec_"));

    let (data, keys) = (server.data(), format!("{}/tidegate.db.key", server.data()));
    assert!(tidegate(&["secrets", "new-key", "--file", &keys, "--add"]).status().unwrap().success());
    let rotate = || tidegate(&["secrets", "rotate", "--data-dir", &data, "--json"]).output().unwrap();
    let rotated: Value = serde_json::from_str(&text(&rotate())).unwrap();
    assert_eq!((&rotated["seen"], &rotated["changed"], &rotated["unreadable"]), (&2.into(), &2.into(), &0.into()));
    let rotated: Value = serde_json::from_str(&text(&rotate())).unwrap();
    assert_eq!((&rotated["changed"], rotated["keys"].as_array().unwrap().len()), (&0.into(), 1));
    let said = tidegate(&["secrets", "rotate", "--data-dir", &data]).output().unwrap();
    assert!(text(&said).contains("can be removed"), "{}", text(&said));

    // The server finds the new key in the file, and writes with it.
    assert!(server.run(&["accounts", "rotate", "shop"]).starts_with("whpk_"));
    server.run(&["accounts", "delete", "shop"]);
    std::fs::remove_file(&keys).unwrap();
    let doctor = tidegate(&["doctor", "--data-dir", &data]).output().unwrap();
    assert!(!doctor.status.success() && text(&doctor).contains("secrets.old_keys"), "{}", text(&doctor));
    let lost = rotate();
    assert!(!lost.status.success(), "{}", text(&lost));
    server.stop();
}

/// Without a key on PostgreSQL nothing that is secret is stored, and what to do is said.
#[test]
fn on_postgres_a_key_must_be_there() {
    let url = tidegate_testing::fresh_database();
    {
        let server = Server::start(&["--database-url", &url]);
        let subscribe = ["subscriptions", "create", "s", "--type", "a:b:c:d", "--target", "https://example.com/hook"];
        let refused = tidegate(&subscribe).env("TIDEGATE_URL", &server.url).output().unwrap();
        let said = error(&refused);
        assert!(!refused.status.success(), "{said}");
        assert!(said.contains("secrets.key") && said.contains("tidegate secrets new-key"), "{said}");
        let doctor = tidegate(&["doctor", "--database-url", &url]).output().unwrap();
        assert!(text(&doctor).contains("secrets.key_file"), "{}", text(&doctor));
        server.stop();
        let key = text(&tidegate(&["secrets", "new-key"]).output().unwrap());
        let with_key =
            tidegate(&["secrets", "rotate", "--database-url", &url]).env("TIDEGATE_SECRETS_KEY", key).output();
        assert!(with_key.unwrap().status.success());
    }
    tidegate_testing::drop_database(&url).unwrap();
}
