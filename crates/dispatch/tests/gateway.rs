//! Event types, versions and schemas on both databases, by the gateway's verbs.

use std::sync::Arc;

use tidegate::{ChangeResource, EventQueue, PutResource, Timestamp, Tsid};
use tidegate_dispatch::secrets::SecretOptions;
use tidegate_dispatch::{
    Changed, EventType, EventTypeBody, Gateway, GatewayError, GatewayOptions, Match, NewVersion, SchemaBody,
    SchemaType, SchemasQuery, TypeStatus, TypesQuery, VersionNumber, VersionStatus,
};

/// A database with two gateways on it, as two nodes would have them.
struct Scene {
    queue: EventQueue,
    one: Arc<Gateway>,
    other: Gateway,
    place: Place,
}

enum Place {
    Folder { _dir: tempfile::TempDir },
    Postgres(String),
}

/// On PostgreSQL a key must be configured.
fn options() -> GatewayOptions {
    let key = Some("tgkey_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse().unwrap());
    GatewayOptions { secrets: SecretOptions { key, ..SecretOptions::default() }, ..GatewayOptions::default() }
}

impl Scene {
    async fn at(address: &str, place: Place) -> Self {
        let open = || async { EventQueue::open(address).await.unwrap() };
        let gateway = |queue: EventQueue| Gateway::new(queue, options());
        let queue = open().await;
        Self { one: Arc::new(gateway(queue.clone())), other: gateway(open().await), queue, place }
    }

    async fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = dir.path().join("tidegate.db").to_str().unwrap().to_owned();
        Self::at(&address, Place::Folder { _dir: dir }).await
    }

    async fn postgres() -> Self {
        let url = tidegate_testing::fresh_database();
        Self::at(&url, Place::Postgres(url.clone())).await
    }

    async fn made(&self, code: &str) -> EventType {
        self.one.create_type(&code.parse().unwrap(), &about("a name")).await.unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Place::Postgres(url) = &self.place {
            let url = url.clone();
            let _ = std::thread::spawn(move || tidegate_testing::drop_database(&url)).join();
        }
    }
}

macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Scene::sqlite().await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Scene::postgres().await).await;
            })*
        }
    };
}

on_both!(
    types_are_created_listed_changed_and_archived,
    versions_move_through_their_lives,
    a_new_minor_must_not_break_unless_that_is_forced,
    what_is_wrong_is_refused_and_leaves_nothing,
    schemas_of_versions_are_those_of_versions,
    data_is_validated_against_the_version_of_now,
    writers_at_once_lose_nothing,
    one_writer_wins_a_revision_of_a_schema,
    a_schema_and_its_version_are_changed_at_once_and_both_stay,
    an_answer_shows_what_its_own_change_wrote,
    two_finalise_at_once,
    lists_read_schemas_in_pieces_and_leave_their_texts_out,
    the_schemas_of_a_type_are_bounded_together,
    messages_are_chosen_by_versions,
    a_refusal_says_where_a_reason_can_be_given,
);

fn about(name: &str) -> EventTypeBody {
    EventTypeBody { name: name.into(), description: Some("what it means".into()) }
}

fn number(text: &str) -> VersionNumber {
    text.parse().unwrap()
}

fn json_schema(schema: &str) -> NewVersion {
    NewVersion {
        mime_type: "application/json".into(),
        schema_type: SchemaType::JsonSchema,
        schema: schema.into(),
        message: None,
        strict: false,
        force: None,
        schema_name: None,
        schema_description: None,
    }
}

fn schema_body(name: &str, content: &str) -> SchemaBody {
    SchemaBody {
        name: name.into(),
        description: None,
        mime_type: "application/json".into(),
        schema_type: SchemaType::JsonSchema,
        content: content.into(),
    }
}

/// A JSON Schema of about so many bytes, different for each number.
fn large(number: usize, bytes: usize) -> String {
    format!(r#"{{"type": "object", "$comment": "{number} {}"}}"#, "x".repeat(bytes))
}

const NARROW: &str = r#"{"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "integer"}}}"#;
const WIDE: &str = r#"{"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}"#;

fn now() -> Timestamp {
    Timestamp::now()
}

fn stages(of: &EventType) -> Vec<(String, VersionStatus)> {
    of.versions.iter().map(|one| (one.version.to_string(), one.status)).collect()
}

async fn types_are_created_listed_changed_and_archived(scene: Scene) {
    let made = scene.made("shop:orders:order:created").await;
    assert_eq!((made.name.as_str(), made.status, made.versions.len()), ("a name", TypeStatus::Current, 0));
    let taken = scene.other.create_type(&made.code, &about("again")).await;
    assert!(matches!(taken, Err(GatewayError::Conflict(_))), "{taken:?}");
    for code in ["shop:orders:order:paid", "shop:stock:item:moved", "crm:customers:customer:joined"] {
        scene.made(code).await;
    }
    let list = async |code: Option<&str>, after: Option<&str>, limit: usize| {
        let query = TypesQuery {
            code: code.map(|code| code.parse().unwrap()),
            after: after.map(Into::into),
            limit,
            ..TypesQuery::default()
        };
        let (page, more) = scene.other.list_types(&query, None).await.unwrap();
        (page.iter().map(|one| one.code.to_string()).collect::<Vec<_>>(), more)
    };
    let orders = vec!["shop:orders:order:created".to_owned(), "shop:orders:order:paid".to_owned()];
    assert_eq!(list(Some("shop:*:order:*"), None, 9).await, (orders.clone(), false));
    assert_eq!(list(Some("*:orders:*:*"), None, 1).await, (orders[..1].to_vec(), true));
    assert_eq!(list(Some("*:orders:*:*"), Some(&orders[0]), 9).await, (orders[1..].to_vec(), false));
    assert_eq!(list(None, None, 9).await.0.len(), 4);

    let changed = scene.other.change_type(made.id, Match::Is(made.revision), &about("another")).await.unwrap();
    assert_eq!(changed.event_type.name, "another");
    let stale = scene.one.change_type(made.id, Match::Is(made.revision), &about("late")).await;
    assert!(matches!(stale, Err(GatewayError::Changed(_))), "{stale:?}");
    assert_eq!(
        scene.one.event_type(made.id, None).await.unwrap().name,
        "another",
        "the next call on every node sees it"
    );

    let archived = scene.one.archive_type(made.id, Match::Any).await.unwrap();
    assert_eq!((archived.event_type.status, archived.changed), (TypeStatus::Archive, Changed::Yes));
    assert_eq!(scene.other.archive_type(made.id, Match::Any).await.unwrap().changed, Changed::No);
    let refused = scene.one.change_type(made.id, Match::Any, &about("late")).await;
    assert!(matches!(refused, Err(GatewayError::Conflict(_))), "{refused:?}");
    let query = TypesQuery { status: Some(TypeStatus::Archive), limit: 9, ..TypesQuery::default() };
    assert_eq!(scene.other.list_types(&query, None).await.unwrap().0.len(), 1);
    let missing = scene.one.archive_type(Tsid::from_i64(5), Match::Any).await;
    assert!(matches!(missing, Err(GatewayError::NotFound(_))), "{missing:?}");
}

async fn versions_move_through_their_lives(scene: Scene) {
    use VersionStatus::{Current, Deprecated, Finalising};
    let id = scene.made("a:b:c:d").await.id;
    let add = async |text: &str| scene.one.add_version(id, Match::Any, number(text), &json_schema(WIDE), now()).await;
    add("1.0").await.unwrap();
    assert!(matches!(add("1.0").await, Err(GatewayError::Conflict(_))));
    scene.other.finalise_version(id, Match::Any, number("1.0")).await.unwrap();
    assert_eq!(scene.one.finalise_version(id, Match::Any, number("1.0")).await.unwrap().changed, Changed::No);
    add("1.1").await.unwrap();
    let changed = json_schema(r#"{"type": "object"}"#);
    scene.other.change_version(id, Match::Any, number("1.1"), &changed, now()).await.unwrap();
    let found = scene.one.finalise_version(id, Match::Any, number("1.1")).await.unwrap().event_type;
    assert_eq!(stages(&found), [("1.0".into(), Deprecated), ("1.1".into(), Current)]);
    assert_eq!(scene.one.schema_of(&found, number("1.1")).await.unwrap().content, changed.schema);
    let fixed = scene.one.change_version(id, Match::Any, number("1.1"), &changed, now()).await;
    assert!(matches!(fixed, Err(GatewayError::Conflict(_))), "{fixed:?}");
    let fixed = scene.one.delete_version(id, Match::Any, number("1.1")).await;
    assert!(matches!(fixed, Err(GatewayError::Conflict(_))), "{fixed:?}");

    let found = add("2.0").await.unwrap().event_type;
    assert_eq!(stages(&found)[2], ("2.0".into(), Finalising));
    let schema = scene.one.schema_of(&found, number("2.0")).await.unwrap();
    assert!(matches!(scene.one.deprecate_version(id, Match::Any, number("2.0")).await, Err(GatewayError::Conflict(_))));
    let found = scene.other.delete_version(id, Match::Is(found.revision), number("2.0")).await.unwrap();
    assert_eq!(found.versions.len(), 2);
    assert!(matches!(scene.one.schema(schema.id).await, Err(GatewayError::NotFound(_))), "its schema went with it");
    let found = scene.one.deprecate_version(id, Match::Any, number("1.1")).await.unwrap().event_type;
    assert_eq!(stages(&found)[1], ("1.1".into(), Deprecated));
    scene.one.archive_type(id, Match::Any).await.unwrap();
    assert!(matches!(add("3.0").await, Err(GatewayError::Conflict(_))), "archived");
}

async fn a_new_minor_must_not_break_unless_that_is_forced(scene: Scene) {
    let id = scene.made("a:b:c:d").await.id;
    scene.one.add_version(id, Match::Any, number("1.0"), &json_schema(WIDE), now()).await.unwrap();
    // Nothing to break yet: 1.0 is not finalised.
    scene.one.add_version(id, Match::Any, number("1.1"), &json_schema(NARROW), now()).await.unwrap();
    scene.one.finalise_version(id, Match::Any, number("1.0")).await.unwrap();
    let late = scene.one.finalise_version(id, Match::Any, number("1.1")).await.unwrap_err();
    let GatewayError::Unprocessable { message, violations } = &late else { panic!("{late:?}") };
    assert!(message.contains("version 1.1 breaks what version 1.0 accepts"), "{message}");
    assert!(violations.iter().any(|one| one.message.contains('b')), "{violations:?}");
    let mut forced = json_schema(NARROW);
    let refused = scene.one.change_version(id, Match::Any, number("1.1"), &forced, now()).await;
    assert!(matches!(refused, Err(GatewayError::Unprocessable { .. })), "{refused:?}");
    forced.force = Some(("nobody sends it without b".into(), "ada".into()));
    scene.one.change_version(id, Match::Any, number("1.1"), &forced, now()).await.unwrap();
    let found = scene.other.finalise_version(id, Match::Any, number("1.1")).await.unwrap().event_type;
    let kept = found.version(number("1.1")).unwrap().forced.clone().unwrap();
    assert_eq!((kept.reason.as_str(), kept.by.as_str()), ("nobody sends it without b", "ada"));
    // Another major may do as it likes; another language within a major may not.
    scene.one.add_version(id, Match::Any, number("2.0"), &json_schema(WIDE), now()).await.unwrap();
    let proto = NewVersion {
        mime_type: "application/protobuf".into(),
        schema_type: SchemaType::Proto,
        schema: "syntax = \"proto3\"; message M { int32 a = 1; }".into(),
        ..json_schema("")
    };
    let refused = scene.one.add_version(id, Match::Any, number("1.2"), &proto, now()).await;
    assert!(matches!(refused, Err(GatewayError::Unprocessable { .. })), "{refused:?}");
    let unsure = json_schema(r#"{"type": "object", "required": ["a"], "not": {"type": "array"}}"#);
    let added = scene.one.add_version(id, Match::Any, number("2.1"), &unsure, now()).await.unwrap();
    assert_eq!(added.warnings.len(), 0, "2.0 is not finalised");
    let same = found.version(number("1.0")).unwrap().version;
    assert!(scene.one.compare_versions(&found, same, same).await.unwrap().changes().is_empty());
}

async fn what_is_wrong_is_refused_and_leaves_nothing(scene: Scene) {
    let made = scene.made("a:b:c:d").await;
    let bad = json_schema("{\n  \"type\": \"objekt\"\n}");
    let refused = scene.one.add_version(made.id, Match::Any, number("1.0"), &bad, now()).await.unwrap_err();
    let GatewayError::Unprocessable { violations, .. } = &refused else { panic!("{refused:?}") };
    assert_eq!((violations[0].path.as_str(), violations[0].position.map(|at| at.line)), ("schema", Some(2)));
    let xml = NewVersion { mime_type: "application/xml".into(), ..json_schema(WIDE) };
    let refused = scene.one.add_version(made.id, Match::Any, number("1.0"), &xml, now()).await.unwrap_err();
    assert!(matches!(&refused, GatewayError::Invalid(text) if text.contains("mimeType")), "{refused:?}");
    let message = NewVersion { message: Some("M".into()), ..json_schema(WIDE) };
    let refused = scene.one.add_version(made.id, Match::Any, number("1.0"), &message, now()).await;
    assert!(matches!(&refused, Err(GatewayError::Invalid(text)) if text.contains("message")), "{refused:?}");
    let stale = Match::Is(made.revision - 1);
    let refused = scene.one.add_version(made.id, stale, number("1.0"), &json_schema(WIDE), now()).await;
    assert!(matches!(refused, Err(GatewayError::Changed(_))), "{refused:?}");
    for name in ["", "  ", "a\u{7}b", &"x".repeat(201)] {
        let refused = scene.one.create_type(&"e:f:g:h".parse().unwrap(), &about(name)).await;
        assert!(matches!(&refused, Err(GatewayError::Invalid(text)) if text.contains("name")), "{refused:?}");
    }
    let found = scene.other.event_type(made.id, None).await.unwrap();
    assert_eq!((found.revision, found.versions.len()), (made.revision, 0));
    let (schemas, _) = scene.one.list_schemas(&SchemasQuery { after: None, limit: 9 }).await.unwrap();
    assert!(schemas.is_empty(), "{schemas:?}");
}

async fn schemas_of_versions_are_those_of_versions(scene: Scene) {
    let body = schema_body;
    let alone = scene.one.create_schema(&body("alone", WIDE), None, now()).await.unwrap();
    let twin = scene.one.create_schema(&body("alone", WIDE), None, now()).await.unwrap();
    assert_ne!(alone.id, twin.id, "names need not differ");
    let id = scene.made("a:b:c:d").await.id;
    let linked = scene.one.create_schema(&body("linked", WIDE), Some((id, number("1.0"))), now()).await.unwrap();
    assert_eq!(linked.linked, Some((id, number("1.0"))));
    let found = scene.other.event_type(id, None).await.unwrap();
    assert_eq!(scene.other.schema_of(&found, number("1.0")).await.unwrap(), linked);
    let changed =
        scene.other.change_schema(linked.id, Match::Is(linked.revision), &body("linked", NARROW), now()).await;
    assert_eq!(changed.unwrap().content, NARROW);
    let stale = scene.one.change_schema(linked.id, Match::Is(linked.revision), &body("linked", WIDE), now()).await;
    assert!(matches!(stale, Err(GatewayError::Changed(_))), "{stale:?}");
    let refused = scene.one.delete_schema(linked.id, Match::Any).await;
    assert!(matches!(refused, Err(GatewayError::Conflict(_))), "{refused:?}");
    scene.one.finalise_version(id, Match::Any, number("1.0")).await.unwrap();
    let refused = scene.one.change_schema(linked.id, Match::Any, &body("linked", WIDE), now()).await;
    assert!(matches!(refused, Err(GatewayError::Conflict(_))), "{refused:?}");
    let page = |after: Option<String>| SchemasQuery { after, limit: 2 };
    let (first, more) = scene.other.list_schemas(&page(None)).await.unwrap();
    assert_eq!((first.len(), more), (2, true));
    let (rest, more) = scene.other.list_schemas(&page(Some(first[1].cursor().into()))).await.unwrap();
    assert_eq!((rest.len(), more, rest[0].id), (1, false, linked.id));
    scene.one.delete_schema(alone.id, Match::Any).await.unwrap();
    assert!(matches!(scene.other.schema(alone.id).await, Err(GatewayError::NotFound(_))));
}

async fn data_is_validated_against_the_version_of_now(scene: Scene) {
    let id = scene.made("a:b:c:d").await.id;
    let validate = async |gateway: &Gateway, version: Option<&str>, data: &str| {
        gateway.validate(id, version.map(number), None, data.into(), None).await
    };
    assert!(matches!(validate(&scene.one, None, "{}").await, Err(GatewayError::NotFound(_))), "no CURRENT version");
    scene.one.add_version(id, Match::Any, number("1.0"), &json_schema(WIDE), now()).await.unwrap();
    let valid = async |gateway: &Gateway, version: Option<&str>, data: &str| {
        validate(gateway, version, data).await.unwrap().report.is_valid()
    };
    assert!(valid(&scene.one, Some("1.0"), r#"{"a": 1}"#).await, "people test payloads before a version is finalised");
    assert!(!valid(&scene.other, Some("1.0"), r#"{"a": "x"}"#).await);
    scene.other.change_version(id, Match::Any, number("1.0"), &json_schema(NARROW), now()).await.unwrap();
    assert!(!valid(&scene.one, Some("1.0"), r#"{"a": 1}"#).await, "the next call on every node sees the new text");
    scene.one.finalise_version(id, Match::Any, number("1.0")).await.unwrap();
    let found = validate(&scene.other, None, "{").await.unwrap();
    assert_eq!((found.version, found.report.is_valid()), (number("1.0"), false), "what does not parse is not valid");
    let large = format!(r#"{{"a": 1, "b": "{}"}}"#, "x".repeat(100_000));
    assert!(valid(&scene.one, None, &large).await);
    let xml = scene.one.validate(id, None, Some("application/xml"), b"<a/>".to_vec(), None).await;
    assert!(matches!(xml, Err(GatewayError::Unsupported(_))), "{xml:?}");
}

async fn writers_at_once_lose_nothing(scene: Scene) {
    let id = scene.made("a:b:c:d").await.id;
    let add = |major: u32| {
        let gateway = Arc::clone(&scene.one);
        tokio::spawn(async move {
            let number = VersionNumber { major, minor: 0 };
            loop {
                match gateway.add_version(id, Match::Any, number, &json_schema(WIDE), now()).await {
                    // Too many others were faster: nothing was written.
                    Err(GatewayError::Conflict(text)) if text.contains("try again") => {}
                    done => return done.map(drop),
                }
            }
        })
    };
    let all: Vec<_> = (1..=12).map(add).collect();
    for one in all {
        one.await.unwrap().unwrap();
    }
    let found = scene.other.event_type(id, None).await.unwrap();
    assert_eq!(found.versions.len(), 12);
    let (schemas, _) = scene.other.list_schemas(&SchemasQuery { after: None, limit: 99 }).await.unwrap();
    assert_eq!(schemas.len(), 12, "no schema without its version");
}

async fn one_writer_wins_a_revision_of_a_schema(scene: Scene) {
    let id = scene.made("a:b:c:d").await.id;
    let linked = Some((id, number("1.0")));
    let mut schema = scene.one.create_schema(&schema_body("linked", WIDE), linked, now()).await.unwrap();
    for round in 0..5 {
        let on = Match::Is(schema.revision);
        let write = |at: usize| {
            let gateway = Arc::clone(&scene.one);
            let body = schema_body(&format!("{round} {at}"), WIDE);
            tokio::spawn(async move { gateway.change_schema(schema.id, on, &body, now()).await })
        };
        let all: Vec<_> = (0..8).map(write).collect();
        let mut won = Vec::new();
        for one in all {
            match one.await.unwrap() {
                Ok(written) => won.push(written),
                Err(GatewayError::Changed(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(won.len(), 1, "all others are told that it has changed: {won:?}");
        schema = scene.other.schema(schema.id).await.unwrap();
        assert_eq!(won[0], schema, "and the one that won was not overwritten");
    }
}

async fn a_schema_and_its_version_are_changed_at_once_and_both_stay(scene: Scene) {
    let id = scene.made("a:b:c:d").await.id;
    let linked = Some((id, number("1.0")));
    let schema = scene.one.create_schema(&schema_body("linked", WIDE), linked, now()).await.unwrap();
    for round in 0..20 {
        let strict = round % 2 == 0;
        let gateway = Arc::clone(&scene.one);
        let by_schema = tokio::spawn(async move {
            gateway.change_schema(schema.id, Match::Any, &schema_body(&format!("{round}"), WIDE), now()).await
        });
        let new = NewVersion { strict, ..json_schema(WIDE) };
        let by_version = scene.other.change_version(id, Match::Any, number("1.0"), &new, now());
        assert!(by_version.await.is_ok() && by_schema.await.unwrap().is_ok());
        let found = scene.one.event_type(id, None).await.unwrap();
        assert_eq!(found.versions[0].strict, strict, "round {round}: a change of the text leaves the rest");
        let name = scene.one.schema(schema.id).await.unwrap().name;
        assert_eq!(name, round.to_string(), "and a change of the version leaves the name");
    }
}

async fn an_answer_shows_what_its_own_change_wrote(scene: Scene) {
    let id = scene.made("a:b:c:d").await.id;
    let first = scene.one.add_version(id, Match::Any, number("1.0"), &json_schema(WIDE), now()).await.unwrap();
    assert_eq!((first.schemas.len(), first.schemas[0].content.as_str()), (1, WIDE));
    assert_eq!(first.schemas[0].name, "a:b:c:d 1.0");
    let schema = first.schemas[0].id;
    let change = |at: usize| {
        let gateway = Arc::clone(&scene.one);
        tokio::spawn(async move {
            let text = large(at, 0);
            loop {
                let new = json_schema(&text);
                let written = match at % 2 {
                    0 => gateway.change_version(id, Match::Any, number("1.0"), &new, now()).await.map(|mut written| {
                        assert_eq!(written.event_type.revision, written.schemas[0].revision);
                        written.schemas.remove(0)
                    }),
                    _ => gateway.change_schema(schema, Match::Any, &schema_body("s", &text), now()).await,
                };
                match written {
                    Err(GatewayError::Conflict(text)) if text.contains("try again") => {}
                    written => return assert_eq!(written.unwrap().content, text),
                }
            }
        })
    };
    let all: Vec<_> = (0..12).map(change).collect();
    for one in all {
        one.await.unwrap();
    }
    let named = NewVersion {
        schema_name: Some("Order".into()),
        schema_description: Some("what is ordered".into()),
        ..json_schema(WIDE)
    };
    scene.one.change_version(id, Match::Any, number("1.0"), &named, now()).await.unwrap();
    let kept = scene.one.change_version(id, Match::Any, number("1.0"), &json_schema(NARROW), now()).await.unwrap();
    let kept = &kept.schemas[0];
    assert_eq!((kept.name.as_str(), kept.description.as_deref()), ("Order", Some("what is ordered")));
    for written in [
        scene.one.finalise_version(id, Match::Any, number("1.0")).await,
        scene.other.finalise_version(id, Match::Any, number("1.0")).await,
        scene.one.change_type(id, Match::Any, &about("renamed")).await,
        scene.one.deprecate_version(id, Match::Any, number("1.0")).await,
        scene.other.deprecate_version(id, Match::Any, number("1.0")).await,
        scene.one.archive_type(id, Match::Any).await,
        scene.other.archive_type(id, Match::Any).await,
    ] {
        let schemas = written.unwrap().schemas;
        assert_eq!((schemas.len(), schemas[0].content.as_str()), (1, NARROW));
    }
}

async fn two_finalise_at_once(scene: Scene) {
    use VersionStatus::{Current, Deprecated, Finalising};
    for round in 0..8 {
        let id = scene.made(&format!("a:b:c:{round}")).await.id;
        for text in ["1.0", "1.1"] {
            scene.one.add_version(id, Match::Any, number(text), &json_schema(WIDE), now()).await.unwrap();
        }
        let lower = scene.one.finalise_version(id, Match::Any, number("1.0"));
        let higher = scene.other.finalise_version(id, Match::Any, number("1.1"));
        let (lower, higher) = tokio::join!(lower, higher);
        assert_eq!(higher.unwrap().changed, Changed::Yes);
        let first = match lower {
            Ok(_) => Deprecated,
            Err(GatewayError::Conflict(text)) => {
                assert!(text.contains("version 1.1 is in use already"), "{text}");
                Finalising
            }
            Err(error) => panic!("{error}"),
        };
        let found = scene.one.event_type(id, None).await.unwrap();
        assert_eq!(stages(&found), [("1.0".into(), first), ("1.1".into(), Current)]);

        scene.one.add_version(id, Match::Any, number("2.0"), &json_schema(WIDE), now()).await.unwrap();
        let one = scene.one.finalise_version(id, Match::Any, number("2.0"));
        let other = scene.other.finalise_version(id, Match::Any, number("2.0"));
        let (one, other) = tokio::join!(one, other);
        let changed = [one.unwrap().changed, other.unwrap().changed];
        assert_eq!(changed.iter().filter(|changed| **changed == Changed::Yes).count(), 1, "{changed:?}");
    }
}

async fn lists_read_schemas_in_pieces_and_leave_their_texts_out(scene: Scene) {
    let name = |at: usize| format!("small {at:02}");
    for at in 0..40 {
        scene.one.create_schema(&schema_body(&name(at), WIDE), None, now()).await.unwrap();
    }
    let page = async |after: Option<String>, limit: usize| {
        let (schemas, more) = scene.other.list_schemas(&SchemasQuery { after, limit }).await.unwrap();
        assert!(schemas.iter().all(|one| one.content.is_empty()), "texts are left out");
        (schemas, more)
    };
    let mut seen = Vec::new();
    for limit in [1, 15, 16, 17, 32, 39, 40, 1_000] {
        let (schemas, more) = page(None, limit).await;
        assert_eq!((schemas.len(), more), (limit.min(40), limit < 40), "limit {limit}");
        let names: Vec<&str> = schemas.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, (0..limit.min(40)).map(name).collect::<Vec<_>>());
        let (rest, more) = page(schemas.last().map(|last| last.cursor().into()), 1_000).await;
        assert_eq!((rest.len(), more), (40 - limit.min(40), false));
        seen = schemas;
    }
    // A schema that is renamed keeps its place.
    let renamed = schema_body("zzz", WIDE);
    scene.one.change_schema(seen[0].id, Match::Any, &renamed, now()).await.unwrap();
    assert_eq!(page(None, 1).await.0[0].name, "zzz");

    for at in 0..40 {
        scene.one.create_schema(&schema_body("tall", &large(at, 500_000)), None, now()).await.unwrap();
    }
    let (first, more) = page(seen.last().map(|last| last.cursor().into()), 1_000).await;
    assert!(more && (30..40).contains(&first.len()), "a page ends by its bytes: {}", first.len());
    let (rest, more) = page(first.last().map(|last| last.cursor().into()), 1_000).await;
    assert_eq!((first.len() + rest.len(), more), (40, false));
}

async fn the_schemas_of_a_type_are_bounded_together(scene: Scene) {
    let id = scene.made("a:b:c:d").await.id;
    let version = |major: u32| VersionNumber { major, minor: 0 };
    let add = async |major: u32, text: &str| {
        scene.one.add_version(id, Match::Any, version(major), &json_schema(text), now()).await
    };
    for major in 1..=32 {
        add(major, &large(0, 523_000)).await.unwrap();
    }
    add(33, WIDE).await.unwrap();
    let full = |refused: Result<tidegate_dispatch::Written, GatewayError>| match refused {
        Err(GatewayError::Conflict(text)) => assert!(text.contains("16777216 are allowed"), "{text}"),
        other => panic!("{other:?}"),
    };
    full(add(34, &large(0, 523_000)).await);
    let grown = json_schema(&large(0, 523_000));
    full(scene.other.change_version(id, Match::Any, version(33), &grown, now()).await);
    let described = NewVersion { schema_description: Some("d".repeat(60_000)), ..json_schema(WIDE) };
    full(scene.other.change_version(id, Match::Any, version(33), &described, now()).await);
    let schema = scene.one.event_type(id, None).await.unwrap();
    let schema = scene.one.schema_of(&schema, version(33)).await.unwrap();
    let by_schema = scene.one.change_schema(schema.id, Match::Any, &schema_body("s", &grown.schema), now()).await;
    assert!(matches!(by_schema, Err(GatewayError::Conflict(_))), "{by_schema:?}");
    // Types that were written before bytes were counted.
    let stored = scene.queue.resources().get("event_type", id).await.unwrap().unwrap();
    let mut older: serde_json::Value = serde_json::from_str(&stored.body).unwrap();
    for version in older["versions"].as_array_mut().unwrap() {
        assert!(version.as_object_mut().unwrap().remove("bytes").is_some());
    }
    let put = PutResource::Change { id, kind: "event_type".into(), expected: None, body: older.to_string() };
    scene.queue.resources().change(vec![ChangeResource::Put(put)]).await.unwrap();
    full(add(34, &large(0, 523_000)).await);
    scene.one.delete_version(id, Match::Any, version(1)).await.unwrap();
    add(34, &large(0, 523_000)).await.unwrap();
    let (found, schemas) = scene.other.type_with_schemas(id, None).await.unwrap();
    assert_eq!((found.versions.len(), schemas.len()), (33, 33));
}

async fn messages_are_chosen_by_versions(scene: Scene) {
    let proto = |content: &str| SchemaBody {
        schema_type: SchemaType::Proto,
        mime_type: "application/protobuf".into(),
        ..schema_body("shop", content)
    };
    let two = "syntax = \"proto3\"; package shop; message Order {} message Line {}";
    let alone = scene.one.create_schema(&proto(two), None, now()).await.unwrap();
    let changed = format!("{two} message Customer {{}}");
    let changed = scene.one.change_schema(alone.id, Match::Is(alone.revision), &proto(&changed), now()).await.unwrap();
    assert!(changed.content.contains("Customer"));
    let bad = scene.one.create_schema(&proto("syntax = \"proto3\"; message A { B b = 1; }"), None, now()).await;
    assert!(matches!(&bad, Err(GatewayError::Unprocessable { .. })), "{bad:?}");

    let id = scene.made("a:b:c:d").await.id;
    let linked = scene.one.create_schema(&proto(two), Some((id, number("1.0"))), now()).await;
    let Err(GatewayError::Unprocessable { message, .. }) = linked else { panic!("{linked:?}") };
    assert!(message.ends_with("the message of a version is named where versions of its event type are written"));
    let new = NewVersion {
        schema_type: SchemaType::Proto,
        mime_type: "application/protobuf".into(),
        message: Some("shop.Line".into()),
        ..json_schema(two)
    };
    let added = scene.one.add_version(id, Match::Any, number("1.0"), &new, now()).await.unwrap();
    let schema = added.schemas[0].id;
    scene.one.change_schema(schema, Match::Any, &proto(&two.replace("Order", "Offer")), now()).await.unwrap();
    let found = scene.other.event_type(id, None).await.unwrap();
    assert_eq!(found.versions[0].message.as_deref(), Some("shop.Line"));
}

async fn a_refusal_says_where_a_reason_can_be_given(scene: Scene) {
    let id = scene.made("a:b:c:d").await.id;
    let add = async |text: &str, schema: &str| {
        scene.one.add_version(id, Match::Any, number(text), &json_schema(schema), now()).await
    };
    add("1.0", WIDE).await.unwrap();
    let open = add("1.1", NARROW).await.unwrap().schemas.remove(0);
    scene.one.finalise_version(id, Match::Any, number("1.0")).await.unwrap();
    let here = |error: GatewayError| error.to_string().contains("say why it is wanted in force.reason");
    assert!(here(add("1.2", NARROW).await.unwrap_err()));
    let change = scene.one.change_version(id, Match::Any, number("1.1"), &json_schema(NARROW), now()).await;
    assert!(here(change.unwrap_err()));
    let body = schema_body("s", NARROW);
    for error in [
        scene.one.create_schema(&body, Some((id, number("1.2"))), now()).await.unwrap_err(),
        scene.one.change_schema(open.id, Match::Any, &body, now()).await.unwrap_err(),
        scene.one.finalise_version(id, Match::Any, number("1.1")).await.unwrap_err(),
    ] {
        assert!(matches!(error, GatewayError::Unprocessable { .. }), "{error}");
        let text = error.to_string();
        assert!(!text.contains("force.reason"), "these have no such field: {text}");
        assert!(text.contains("write it as a version of its event type, which may say why it is wanted"), "{text}");
    }
}
