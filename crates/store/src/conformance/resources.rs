//! Resources: written under an expected version, deleted, listed, and read by what changed since a catalogue version.

use tidegate_core::Tsid;

use super::scene::*;
use crate::ErrorKind::{Conflict, Invalid, NotFound};
use crate::values::*;

fn create(kind: &str, client: Option<i64>, code: &str, body: &str) -> PutResource {
    let client = client.map(Tsid::from_i64);
    PutResource::Create { id: None, kind: kind.into(), client, code: code.into(), body: body.into() }
}

/// A new `pool` of no client.
fn pool(code: &str) -> PutResource {
    create("pool", None, code, "{}")
}

fn change(of: &Resource, expected: Option<i64>, body: &str) -> PutResource {
    PutResource::Change { id: of.id, kind: of.kind.clone(), expected, body: body.into() }
}

fn deletion(of: &Resource, expected: Option<i64>) -> DeleteResource {
    DeleteResource { id: of.id, kind: of.kind.clone(), expected }
}

async fn put(store: &AnyStore, item: PutResource) -> crate::Result<Resource> {
    only(store.put_resources(vec![item]).await)
}

async fn made(store: &AnyStore, item: PutResource) -> Resource {
    put(store, item).await.expect("the resource is written")
}

async fn delete(store: &AnyStore, item: DeleteResource) -> crate::Result<()> {
    only(store.delete_resources(vec![item]).await)
}

async fn version(store: &AnyStore) -> CatalogueVersion {
    store.catalogue_version().await.expect("the version is read")
}

/// What changed since a version: whether everything followed, and the codes, with a minus before deleted ones.
async fn changed(store: &AnyStore, kind: Option<&str>, since: Option<CatalogueVersion>) -> (bool, Vec<String>) {
    let changes = store.resource_changes(kind, since).await.expect("changes are read");
    assert_eq!(changes.version, version(store).await, "nobody writes meanwhile");
    let shown = |item: &Resource| format!("{}{}", if item.deleted { "-" } else { "" }, item.code);
    assert!(changes.items.iter().all(|item| item.body.is_empty() == item.deleted), "{changes:?}");
    let mut codes: Vec<String> = changes.items.iter().map(shown).collect();
    codes.sort();
    (changes.complete, codes)
}

pub(super) async fn created_changed_and_found(scene: Scene) {
    let (one, other) = (scene.open().await, scene.open().await);
    let before = version(&one).await;
    let first = made(&one, create("pool", Some(7), "small", r#"{ "size": 1 }"#)).await;
    assert_eq!((first.kind.as_str(), first.client, first.code.as_str()), ("pool", Some(Tsid::from_i64(7)), "small"));
    assert_eq!((first.body.as_str(), first.deleted), (r#"{ "size": 1 }"#, false), "the body is kept as it was given");
    assert_eq!((first.created_at, first.updated_at), (scene.now(), scene.now()));
    assert_eq!(first.id.unix_ms(), scene.now().as_millisecond(), "ids are drawn as those of events");
    assert_eq!(first.version, version(&other).await.number);
    assert!(first.version > before.number);
    let found = async |store: &AnyStore| store.resource("pool", first.id).await.unwrap();
    assert_eq!(found(&other).await, Some(first.clone()));
    scene.advance(5);
    let second = made(&other, change(&first, Some(first.version), "[2]")).await;
    assert_eq!((second.created_at, second.updated_at), (first.created_at, scene.now()));
    assert!(second.version > first.version);
    assert_eq!(found(&one).await, Some(second.clone()));
    let by_code = async |kind: &str, client: Option<i64>, code: &str| {
        one.resource_by_code(kind, client.map(Tsid::from_i64), code).await.unwrap()
    };
    assert_eq!(by_code("pool", Some(7), "small").await, Some(second.clone()));
    for (kind, client, code) in [("pool", None, "small"), ("pool", Some(7), "large"), ("account", Some(7), "small")] {
        assert_eq!(by_code(kind, client, code).await, None);
    }
    assert_eq!(one.resource("account", first.id).await.unwrap(), None);
    let own = PutResource::Create {
        id: Some(Tsid::from_i64(42)),
        kind: "pool".into(),
        client: None,
        code: "own".into(),
        body: "null".into(),
    };
    assert_eq!(made(&one, own).await.id, Tsid::from_i64(42));
}

pub(super) async fn changes_are_made_together_or_not_at_all(scene: Scene) {
    let (one, other) = (scene.open().await, scene.open().await);
    let put = ChangeResource::Put;
    let made = one.change_resources(vec![put(pool("a")), put(pool("b"))]).await.unwrap();
    let (a, b) = (made[0].clone(), made[1].clone());
    assert_eq!((a.code.as_str(), b.code.as_str(), a.version), ("a", "b", b.version));
    let before = version(&one).await;
    let stale = ChangeResource::Delete(deletion(&b, Some(b.version - 1)));
    let refused = [
        (vec![put(pool("c")), put(change(&a, Some(a.version), "1")), stale.clone()], Conflict),
        (vec![stale, put(pool("c"))], Conflict),
        (vec![put(pool("c")), put(pool("b"))], Conflict),
        (vec![put(pool("c")), put(pool("c"))], Conflict),
        (vec![put(pool("c")), put(change(&Resource { id: Tsid::from_i64(5), ..a.clone() }, None, "1"))], NotFound),
        (vec![put(pool("c")), put(create("pool", None, "d", "{"))], Invalid),
    ];
    for (items, expected) in refused {
        assert_eq!(kind(one.change_resources(items.clone()).await), expected, "{items:?}");
        assert_eq!(version(&other).await, before, "nothing is written: {items:?}");
        assert_eq!(other.resource_by_code("pool", None, "c").await.unwrap(), None);
    }
    let all = vec![
        put(change(&a, Some(a.version), "1")),
        ChangeResource::Delete(deletion(&b, Some(b.version))),
        put(create("note", None, "of a", "[]")),
    ];
    let done = other.change_resources(all).await.unwrap();
    assert_eq!((done[0].body.as_str(), done[1].deleted, done[2].code.as_str()), ("1", true, "of a"));
    assert!(done.iter().all(|one| one.version == done[0].version) && done[0].version > before.number);
    let (complete, codes) = changed(&one, None, Some(before)).await;
    assert_eq!((complete, codes), (false, vec!["-b".into(), "a".into(), "of a".into()]));
    assert_eq!(one.change_resources(Vec::new()).await.unwrap(), []);
}

pub(super) async fn a_taken_code_is_a_conflict(scene: Scene) {
    let store = scene.open().await;
    let first = made(&store, pool("a")).await;
    let before = version(&store).await;
    let refused = put(&store, pool("a")).await.expect_err("the code is taken");
    assert_eq!(refused.kind(), Conflict);
    assert!(refused.to_string().contains(&first.id.to_string()), "it names who has it: {refused}");
    let same_id = |code: &str| PutResource::Create {
        id: Some(first.id),
        kind: "pool".into(),
        client: None,
        code: code.into(),
        body: "{}".into(),
    };
    assert_eq!(kind(put(&store, same_id("b")).await), Conflict, "the id is taken");
    assert_eq!(version(&store).await, before, "what is refused writes nothing");
    made(&store, create("pool", Some(1), "a", "{}")).await;
    made(&store, create("account", None, "a", "{}")).await;
    delete(&store, deletion(&first, None)).await.unwrap();
    assert_eq!(kind(put(&store, same_id("b")).await), Conflict, "also by a deleted one");
    let again = made(&store, pool("a")).await;
    assert_ne!(again.id, first.id);
    assert_eq!(store.resource_by_code("pool", None, "a").await.unwrap(), Some(again));
}

pub(super) async fn a_change_names_the_version_it_expects(scene: Scene) {
    let (one, other) = (scene.open().await, scene.open().await);
    let first = made(&one, pool("a")).await;
    let second = made(&other, change(&first, Some(first.version), "1")).await;
    let late = put(&one, change(&first, Some(first.version), "2")).await.expect_err("it was changed meanwhile");
    assert_eq!(late.kind(), Conflict);
    assert!(late.to_string().contains(&second.version.to_string()), "it names the version: {late}");
    assert_eq!(kind(delete(&one, deletion(&first, Some(first.version))).await), Conflict);
    assert_eq!(made(&one, change(&first, None, "3")).await.body, "3");
    let unknown = Resource { id: Tsid::from_i64(5), ..first.clone() };
    let other_kind = Resource { kind: "account".into(), ..first.clone() };
    for stranger in [&unknown, &other_kind] {
        assert_eq!(kind(put(&one, change(stranger, None, "4")).await), NotFound);
        assert_eq!(kind(delete(&one, deletion(stranger, None)).await), NotFound);
    }
    delete(&one, deletion(&first, None)).await.unwrap();
    assert_eq!(kind(put(&one, change(&first, None, "5")).await), NotFound, "deleted");
}

pub(super) async fn a_change_without_effect_writes_nothing(scene: Scene) {
    let store = scene.open().await;
    let first = made(&store, pool("a")).await;
    let before = version(&store).await;
    scene.advance(5);
    assert_eq!(made(&store, change(&first, Some(first.version), "{}")).await, first);
    assert_eq!(made(&store, change(&first, None, "{}")).await, first);
    assert_eq!(version(&store).await, before);
    delete(&store, deletion(&first, Some(first.version))).await.unwrap();
    let before = version(&store).await;
    for expected in [None, Some(first.version), Some(0)] {
        delete(&store, deletion(&first, expected)).await.expect("deleting what is deleted is fine");
    }
    assert_eq!(store.put_resources(Vec::new()).await.unwrap().len(), 0);
    assert_eq!(store.delete_resources(Vec::new()).await.unwrap().len(), 0);
    assert_eq!(version(&store).await, before);
    assert_eq!(store.resource("pool", first.id).await.unwrap(), None);
    assert_eq!(store.resource_by_code("pool", None, "a").await.unwrap(), None);
}

pub(super) async fn each_item_of_a_batch_is_answered(scene: Scene) {
    let store = scene.open().await;
    let known = made(&store, pool("known")).await;
    let before = version(&store).await;
    let own = |code: &str| PutResource::Create {
        id: Some(Tsid::from_i64(9)),
        kind: "pool".into(),
        client: None,
        code: code.into(),
        body: "{}".into(),
    };
    let nine = Resource { id: Tsid::from_i64(9), ..known.clone() };
    let items = vec![
        pool("new"),
        pool("known"),
        pool("new"),
        change(&known, Some(known.version), "1"),
        change(&known, Some(known.version), "2"),
        change(&known, None, "3"),
        create("pool", None, "broken", "{"),
        own("nine"),
        own("ten"),
        change(&nine, None, "4"),
        change(&Resource { id: Tsid::from_i64(8), ..known.clone() }, None, "5"),
    ];
    let answers = store.put_resources(items).await.unwrap();
    let expected = [
        None,
        Some(Conflict),
        Some(Conflict),
        None,
        Some(Conflict),
        None,
        Some(Invalid),
        None,
        Some(Conflict),
        None,
        Some(NotFound),
    ];
    assert_eq!(kinds(&answers), expected);
    let after = version(&store).await;
    assert_eq!(after.number, before.number + 1, "one version for all that one call writes");
    for written in answers.iter().flatten() {
        assert_eq!(written.version, after.number);
        assert_eq!(store.resource("pool", written.id).await.unwrap().as_ref(), Some(written), "as the batch left it");
    }
    assert_eq!(answers[3].as_ref().unwrap().body, "3");
    assert_eq!(answers[7].as_ref().unwrap().body, "4");
    let new = answers[0].as_ref().unwrap().clone();
    let items = vec![
        deletion(&known, Some(known.version)),
        deletion(&new, Some(new.version)),
        deletion(&new, Some(new.version)),
        deletion(&Resource { kind: "account".into(), ..nine.clone() }, None),
        DeleteResource { kind: String::new(), ..deletion(&nine, None) },
    ];
    let answers = store.delete_resources(items).await.unwrap();
    assert_eq!(kinds(&answers), [Some(Conflict), None, None, Some(NotFound), Some(Invalid)]);
    assert_eq!(changed(&store, None, Some(after)).await, (false, vec!["-new".into()]));
}

pub(super) async fn what_changed_since_a_version(scene: Scene) {
    let (one, other) = (scene.open().await, scene.open().await);
    let start = version(&one).await;
    assert_eq!(changed(&one, None, None).await, (true, vec![]));
    let [a, b] = [made(&one, pool("a")).await, made(&one, pool("b")).await];
    made(&one, create("account", Some(3), "c", "{}")).await;
    let middle = version(&other).await;
    assert_eq!(changed(&other, None, Some(start)).await, (false, vec!["a".into(), "b".into(), "c".into()]));
    assert_eq!(changed(&other, Some("account"), Some(start)).await, (false, vec!["c".into()]));
    assert_eq!(changed(&other, Some("nothing"), Some(start)).await, (false, vec![]));
    assert_eq!(changed(&other, None, Some(middle)).await, (false, vec![]));
    delete(&one, deletion(&a, None)).await.unwrap();
    made(&one, change(&b, None, "1")).await;
    assert_eq!(changed(&other, None, Some(middle)).await, (false, vec!["-a".into(), "b".into()]));
    assert_eq!(changed(&other, Some("pool"), None).await, (true, vec!["b".into()]), "without deleted ones");
    // Queues and resources have one version: a change of one is none of the other.
    let before = version(&one).await;
    one.put_queue(&queue("new"), QueueChange::default()).await.unwrap();
    assert_ne!(version(&other).await, before);
    assert_eq!(changed(&other, None, Some(before)).await, (false, vec![]));
    publish_one(&other, event("t").queue(queue("new"))).await;
}

pub(super) async fn a_version_that_is_not_in_the_history_reads_everything(scene: Scene) {
    let store = scene.open().await;
    let a = made(&store, pool("a")).await;
    let known = version(&store).await;
    made(&store, pool("b")).await;
    let all = (true, vec!["a".to_owned(), "b".to_owned()]);
    let other_stamp = CatalogueVersion { stamp: known.stamp ^ 1, ..known };
    let future = CatalogueVersion { number: known.number + 50, ..known };
    for stranger in [other_stamp, future, CatalogueVersion { number: -1, stamp: 0 }] {
        assert_eq!(changed(&store, None, Some(stranger)).await, all);
    }
    // A restore lost the change to `b`, and another one reached the same number.
    let lost = version(&store).await;
    scene.fixture.sql(&format!("UPDATE tidegate.meta SET catalogue_version = {}", known.number)).await;
    scene.fixture.sql("UPDATE tidegate.resources SET deleted = NOT deleted WHERE code = 'b'").await;
    let now = version(&store).await;
    assert_eq!(now.number, lost.number);
    assert_ne!(now.stamp, lost.stamp);
    assert_eq!(changed(&store, None, Some(lost)).await, (true, vec!["a".into()]));
    // Further behind than the history reaches.
    scene.fixture.sql("UPDATE tidegate.meta SET catalogue_version = catalogue_version + 1000").await;
    made(&store, change(&a, None, "1")).await;
    assert_eq!(changed(&store, None, Some(now)).await, (true, vec!["a".into()]));
}

pub(super) async fn deleted_ones_are_kept_for_a_thousand_versions(scene: Scene) {
    let store = scene.open().await;
    let (old, kept) = (made(&store, pool("old")).await, made(&store, pool("kept")).await);
    let before = version(&store).await;
    delete(&store, deletion(&old, None)).await.unwrap();
    let count = async || scene.fixture.number("SELECT count(*) FROM tidegate.resources").await;
    scene.fixture.sql("UPDATE tidegate.meta SET catalogue_version = catalogue_version + 999").await;
    assert_eq!(count().await, 2);
    delete(&store, deletion(&old, None)).await.unwrap();
    made(&store, change(&kept, None, "1")).await;
    assert_eq!(count().await, 1, "the deleted one is a thousand versions old");
    assert_eq!(kind(delete(&store, deletion(&old, None)).await), NotFound);
    assert_eq!(changed(&store, None, Some(before)).await, (true, vec!["kept".into()]), "and nobody can miss it");
}

pub(super) async fn changes_of_resources_by_plain_sql_are_seen(scene: Scene) {
    let store = scene.open().await;
    let a = made(&store, pool("a")).await;
    let run = async |statement: &str| {
        let before = version(&store).await;
        scene.fixture.sql(statement).await;
        (before, version(&store).await != before)
    };
    let insert = "INSERT INTO tidegate.resources (id, kind, code, body, created_at, updated_at)
                  SELECT 5, kind, 'b', '[]', created_at, updated_at FROM tidegate.resources";
    let (before, raised) = run(insert).await;
    assert!(raised);
    assert_eq!(changed(&store, None, Some(before)).await, (false, vec!["b".into()]));
    let (before, raised) = run("UPDATE tidegate.resources SET body = '1'").await;
    assert!(raised);
    assert_eq!(changed(&store, None, Some(before)).await, (false, vec!["a".into(), "b".into()]));
    assert_eq!(kind(put(&store, change(&a, Some(a.version), "2")).await), Conflict);
    let (_, raised) = run("UPDATE tidegate.resources SET body = '1'").await;
    assert!(!raised, "without effect");
    let (before, raised) = run("DELETE FROM tidegate.resources WHERE code = 'b'").await;
    assert!(raised);
    assert_eq!(changed(&store, None, Some(before)).await, (true, vec!["a".into()]), "no trace of it is left");
}

/// As rows that are restored from a backup do.
pub(super) async fn versions_that_plain_sql_brings_hide_nothing(scene: Scene) {
    let store = scene.open().await;
    for code in ["a", "b"] {
        made(&store, pool(code)).await;
    }
    for brought in [1, 1_000_000] {
        let statements = [
            format!(
                "INSERT INTO tidegate.resources (id, kind, code, body, version, created_at, updated_at)
                 SELECT {brought}, kind, 'c{brought}', '[]', {brought}, created_at, updated_at
                 FROM tidegate.resources WHERE code = 'a'"
            ),
            format!("UPDATE tidegate.resources SET body = '[1]', version = {brought} WHERE code = 'c{brought}'"),
        ];
        for statement in statements {
            let before = version(&store).await;
            scene.fixture.sql(&statement).await;
            let seen = changed(&store, None, Some(before)).await;
            assert_eq!(seen, (false, vec![format!("c{brought}")]), "{statement}");
        }
    }
}

pub(super) async fn processes_race_for_a_code(scene: Scene) {
    let mut racing = tokio::task::JoinSet::new();
    for process in 0..4 {
        let store = scene.open().await;
        racing.spawn(async move {
            let mut won = 0;
            for round in 0..10 {
                let items = vec![pool(&format!("own {process} {round}")), pool(&format!("shared {round}"))];
                let answers = store.put_resources(items).await.expect("the batch is answered");
                assert_eq!(kinds(&answers)[0], None);
                match kinds(&answers)[1] {
                    None => won += 1,
                    refused => assert_eq!(refused, Some(Conflict)),
                }
            }
            won
        });
    }
    assert_eq!(racing.join_all().await.iter().sum::<i32>(), 10, "each code was taken once");
    let store = scene.open().await;
    let (complete, codes) = changed(&store, Some("pool"), None).await;
    assert!(complete);
    assert_eq!(codes.len(), 50);
}

/// Each increases the number in the body by one under the version that it has read.
pub(super) async fn expected_versions_lose_no_change(scene: Scene) {
    let first = made(&scene.open().await, create("counter", None, "c", "0")).await;
    let mut racing = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (store, id) = (scene.open().await, first.id);
        racing.spawn(async move {
            let mut done = 0;
            while done < 8 {
                let read = store.resource("counter", id).await.unwrap().expect("it is there");
                let next = read.body.parse::<u32>().unwrap() + 1;
                match put(&store, change(&read, Some(read.version), &next.to_string())).await {
                    Ok(_) => done += 1,
                    Err(error) => assert_eq!(error.kind(), Conflict),
                }
            }
        });
    }
    racing.join_all().await;
    let last = scene.open().await.resource("counter", first.id).await.unwrap().expect("it is there");
    assert_eq!(last.body, "32");
}

pub(super) async fn a_batch_that_fails_leaves_nothing(scene: Scene) {
    let store = scene.open().await;
    let known = made(&store, pool("known")).await;
    let before = version(&store).await;
    scene
        .fixture
        .sql(if scene.is_sqlite() {
            "CREATE TRIGGER boom BEFORE INSERT ON tidegate.resources WHEN NEW.code = 'boom'
             BEGIN SELECT RAISE(ABORT, 'boom'); END"
        } else {
            "ALTER TABLE tidegate.resources ADD CONSTRAINT boom CHECK (code <> 'boom')"
        })
        .await;
    let items = vec![pool("a"), change(&known, None, "1"), pool("boom")];
    store.put_resources(items).await.expect_err("the database refuses one of them");
    assert_eq!(version(&store).await, before);
    assert_eq!(changed(&store, None, None).await, (true, vec!["known".into()]));
    assert_eq!(store.resource("pool", known.id).await.unwrap(), Some(known.clone()));
    // A transaction of the application that is rolled back.
    let mut caller = scene.begin().await;
    let table = if scene.is_sqlite() { "tidegate_resources" } else { "tidegate.resources" };
    caller.run_sql(&format!("UPDATE {table} SET body = '7'")).await.unwrap();
    caller.rollback().await;
    assert_eq!(version(&store).await, before);
    made(&store, pool("a")).await;
}

pub(super) async fn listed_by_client_and_code(scene: Scene) {
    let store = scene.open().await;
    let all = [(None, "a"), (None, "b"), (Some(3), "a"), (Some(3), "é"), (Some(4), "b")];
    for (client, code) in all.iter().rev() {
        made(&store, create("pool", *client, code, "{}")).await;
    }
    made(&store, create("account", Some(3), "x", "{}")).await;
    let gone = made(&store, create("pool", Some(3), "gone", "{}")).await;
    delete(&store, deletion(&gone, None)).await.unwrap();
    let list = async |client: Option<Option<i64>>, after: Option<(Option<i64>, &str)>, limit| {
        let client = client.map(|client| client.map(Tsid::from_i64));
        let after = after.map(|(client, code)| (client.map(Tsid::from_i64), code.to_owned()));
        let found = store.resources(ResourcesQuery { kind: "pool".into(), client, after, limit }).await.unwrap();
        found.into_iter().map(|one| (one.client.map(Tsid::to_i64), one.code)).collect::<Vec<_>>()
    };
    let shown = |wanted: &[(Option<i64>, &str)]| -> Vec<(Option<i64>, String)> {
        wanted.iter().map(|(client, code)| (*client, (*code).to_owned())).collect()
    };
    assert_eq!(list(None, None, 100).await, shown(&all));
    assert_eq!(list(None, None, 2).await, shown(&all[..2]));
    assert_eq!(list(None, Some((None, "b")), 2).await, shown(&all[2..4]));
    assert_eq!(list(None, Some((Some(3), "é")), 2).await, shown(&all[4..]));
    assert_eq!(list(Some(Some(3)), None, 100).await, shown(&all[2..4]));
    assert_eq!(list(Some(Some(3)), Some((Some(3), "a")), 100).await, shown(&all[3..4]));
    assert_eq!(list(Some(None), None, 100).await, shown(&all[..2]));
    assert_eq!(list(Some(None), Some((None, "b")), 100).await, []);
    assert_eq!(list(None, None, 0).await, []);
    let too_many = ResourcesQuery { kind: "pool".into(), client: None, after: None, limit: MAX_RESOURCES + 1 };
    assert_eq!(kind(store.resources(too_many).await), Invalid);
}

pub(super) async fn bad_resources_are_refused(scene: Scene) {
    let store = scene.open().await;
    let before = version(&store).await;
    let long = "x".repeat(256);
    for text in ["", "a\0b", "line\nbreak", &long] {
        assert_eq!(kind(put(&store, create(text, None, "c", "{}")).await), Invalid, "{text:?}");
        assert_eq!(kind(put(&store, create("k", None, text, "{}")).await), Invalid, "{text:?}");
        assert_eq!(kind(store.resource_by_code("k", None, text).await), Invalid);
        assert_eq!(kind(store.resource_changes(Some(text), None).await), Invalid);
    }
    let large = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    for body in ["", "{", "{} {}", "nothing", &large(MAX_BODY + 1)] {
        assert_eq!(kind(put(&store, create("k", None, "c", body)).await), Invalid);
    }
    assert_eq!(kind(put(&store, create("k", Some(0), "c", "{}")).await), Invalid, "0 stands for no client");
    assert_eq!(version(&store).await, before);
    let hostile = "'; DROP TABLE tidegate.resources; -- \u{1F600}";
    let made = made(&store, create(hostile, None, hostile, &large(MAX_BODY))).await;
    assert_eq!(store.resource(hostile, made.id).await.unwrap(), Some(made));
    let escaped = r#"{"zero":"\u0000"}"#;
    assert_eq!(put(&store, create("k", None, "c", escaped)).await.unwrap().body, escaped);
}

pub(super) async fn the_use_of_a_key_leaves_the_version(scene: Scene) {
    let store = scene.open().await;
    let new = |hash: u8| NewKey {
        hash: vec![hash; 32],
        name: "ci".into(),
        scopes: vec!["publish".into()],
        client: None,
        expires_at: Some(scene.moment(60)),
    };
    let before = version(&store).await;
    let made = store.put_key(new(1)).await.unwrap();
    assert_eq!(made.expires_at, Some(scene.moment(60)));
    assert_eq!(made.id, 1, "people type it");
    assert_eq!(publish_one(&store, event("t")).await.get(), 1, "and it is not one of the entries' numbers");
    let added = version(&store).await;
    assert_ne!(added, before);
    store.keys_used(vec![made.id, 77], seconds(3)).await.unwrap();
    store.keys_used(vec![made.id], seconds(2)).await.unwrap();
    assert_eq!(kind(store.put_key(new(1)).await), Conflict);
    assert_eq!(version(&store).await, added);
    let used = store.keys().await.unwrap();
    assert_eq!(used[0].last_used_at, Some(scene.now() - seconds(2)));
    assert_eq!(store.resource("key", Tsid::from_i64(made.id)).await.unwrap().unwrap().code, "01".repeat(32));
    store.revoke_key(made.id).await.unwrap();
    let revoked = version(&store).await;
    assert_ne!(revoked, added);
    store.revoke_key(made.id).await.unwrap();
    assert_eq!(version(&store).await, revoked);
    let other = put(&store, pool("a")).await.unwrap();
    assert_eq!(kind(store.revoke_key(other.id.to_i64()).await), NotFound, "no key");
}

pub(super) async fn a_key_that_cannot_be_read_hides_no_other(scene: Scene) {
    let store = scene.open().await;
    let new = |hash: u8| NewKey {
        hash: vec![hash; 32],
        name: "ci".into(),
        scopes: vec!["publish".into()],
        client: None,
        expires_at: None,
    };
    let damaged = store.put_key(new(1)).await.unwrap();
    let whole = store.put_key(new(2)).await.unwrap();
    for body in ["{", r#"{"name":"ci","scopes":[],"expires_at":9223372036854775807}"#] {
        let damage = format!("UPDATE tidegate.resources SET body = '{body}' WHERE id = {}", damaged.id);
        scene.fixture.sql(&damage).await;
        let found = store.keys_by_hash(vec![vec![1; 32], vec![2; 32]]).await.unwrap();
        assert_eq!(found, [None, Some(whole.clone())], "{body}");
        assert_eq!(store.keys().await.unwrap(), std::slice::from_ref(&whole));
    }
}
