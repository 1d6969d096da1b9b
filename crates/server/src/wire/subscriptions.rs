//! Subscriptions.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{Timestamp, Tsid};
use tidegate_dispatch::{
    ConfigEntry, DispatchMode, Filter, Listed, RetryStrategy, SecretText, Subscription, SubscriptionBody,
    SubscriptionStatus, SubscriptionsQuery, Target, TypeBinding, TypePattern, VersionNumber,
};
use utoipa::{IntoParams, ToSchema};

use super::event_types::{limit, version};
use crate::access::Visible;
use crate::cursor;
use crate::error::{ApiError, Result};

/// The id of a subscription in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct SubscriptionPath {
    /// The id of the subscription.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
}

/// Events that a subscription asks for: of a registered type, or of all types whose code matches.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Binding {
    /// The id of a registered type.
    #[schema(min_length = 13, max_length = 13)]
    #[serde(skip_serializing_if = "Option::is_none")]
    event_type_id: Option<String>,
    /// A type, registered or not, or a pattern: `*` stands for any one part between colons. Beside an `eventTypeId`, the code
    /// of that type.
    #[schema(min_length = 1, max_length = 255, example = "shop:*:order:*")]
    event_type_code: Option<String>,
    /// Only events that were validated against this version.
    #[schema(example = "1.0")]
    #[serde(skip_serializing_if = "Option::is_none")]
    spec_version: Option<String>,
}

/// A subscription, new or changed. What is absent has its default.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({
    "code": "order-mails", "name": "Order mails",
    "eventTypes": [{ "eventTypeCode": "shop:orders:order:*" }], "target": "queue:default"
}))]
pub(crate) struct SubscriptionText {
    /// Unique per client; it never changes. A change may leave it out.
    #[schema(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9._-]+$")]
    code: Option<String>,
    /// The client whose events it sees; that of the caller or, for an unscoped caller, all clients if absent. It cannot be
    /// changed.
    #[schema(min_length = 13, max_length = 13)]
    pub(crate) client_id: Option<String>,
    /// A name for people.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    /// What it is for.
    #[schema(max_length = 65536)]
    description: Option<String>,
    /// Which events it asks for.
    #[schema(min_items = 1, max_items = 100)]
    event_types: Vec<Binding>,
    /// Where they go: `https://…`, `http://…` to an allowed address, or `queue:NAME`.
    #[schema(max_length = 2048, example = "queue:default")]
    target: String,
    /// The queue of the transport, if it is not the usual one.
    #[schema(max_length = 255)]
    queue: Option<String>,
    /// What a failed delivery means for the rest of its group: `IMMEDIATE` (nothing is ordered), `NEXT_ON_ERROR` or
    /// `BLOCK_ON_ERROR`.
    #[schema(value_type = Option<String>, example = "IMMEDIATE")]
    mode: Option<DispatchMode>,
    /// The pool that limits its deliveries.
    dispatch_pool_id: Option<String>,
    /// How long a delivery may take; 30 by default.
    #[schema(minimum = 1, maximum = 3600)]
    timeout_seconds: Option<u32>,
    /// Attempts after the first one; 3 by default.
    #[schema(maximum = 1000)]
    max_retries: Option<u32>,
    /// The delays between attempts.
    #[schema(value_type = Option<Object>, example = json!({ "type": "fixed", "delaySeconds": 30 }))]
    retry_strategy: Option<RetryStrategy>,
    /// How old an event may become before its delivery is given up; 86,400 by default.
    #[schema(minimum = 1, maximum = 31_536_000)]
    max_age_seconds: Option<u32>,
    /// How long after the event its delivery begins; 0 by default.
    #[schema(maximum = 31_536_000)]
    delay_seconds: Option<u32>,
    /// Order within a group: lower goes first; 99 by default.
    sequence: Option<i32>,
    /// Whether the data alone is sent (the default), or the whole event.
    data_only: Option<bool>,
    /// Whether the body of a 2xx may ask for another attempt: `{"ack": false, "delaySeconds": 10}`; `false` by default. A body
    /// that is not such JSON, or longer than 64 KiB, acknowledges.
    ack_in_body: Option<bool>,
    /// What it carries for its owner.
    #[schema(value_type = Option<Vec<Object>>, max_items = 64, example = json!([{ "key": "team", "value": "orders" }]))]
    custom_config: Option<Vec<ConfigEntry>>,
    /// The account whose credentials deliveries use: one of the subscription's own client.
    service_account_id: Option<String>,
    /// Which of those events it wants: an expression, or an array of expressions that must all hold.
    #[schema(value_type = Value, required = false, example = json!({ "exact": { "context.region": "eu" } }))]
    filter: Option<Box<RawValue>>,
}

/// Which subscriptions to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SubscriptionsParams {
    /// Only those of this client; an unscoped caller sees those of all by default.
    #[param(min_length = 13, max_length = 13)]
    #[serde(rename = "clientId")]
    pub(crate) client_id: Option<String>,
    /// How many at most; 50 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A subscription.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SubscriptionAnswer {
    /// The id.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    id: Tsid,
    /// The code, which never changes.
    #[schema(example = "order-mails")]
    code: String,
    /// The client whose events it sees; `null` for the anchor level, which sees all.
    #[schema(value_type = Option<String>)]
    client_id: Option<Tsid>,
    /// A name for people.
    name: String,
    /// What it is for.
    description: Option<String>,
    /// `ACTIVE` or `PAUSED`.
    #[schema(value_type = String, example = "ACTIVE")]
    status: SubscriptionStatus,
    /// Which events it asks for.
    event_types: Vec<Binding>,
    /// Where they go.
    #[schema(value_type = String, example = "queue:default")]
    target: Target,
    /// The queue of the transport, if it is not the usual one.
    queue: Option<String>,
    /// `IMMEDIATE`, `NEXT_ON_ERROR` or `BLOCK_ON_ERROR`.
    #[schema(value_type = String, example = "IMMEDIATE")]
    mode: DispatchMode,
    /// The pool that limits its deliveries.
    #[schema(value_type = Option<String>)]
    dispatch_pool_id: Option<Tsid>,
    /// How long a delivery may take.
    timeout_seconds: u32,
    /// Attempts after the first one.
    max_retries: u32,
    /// The delays between attempts; exponential from 3 s to 10 min if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    retry_strategy: Option<RetryStrategy>,
    /// How old an event may become before its delivery is given up.
    max_age_seconds: u32,
    /// How long after the event its delivery begins.
    delay_seconds: u32,
    /// Order within a group: lower goes first.
    sequence: i32,
    /// Whether the data alone is sent, or the whole event.
    data_only: bool,
    /// Whether the body of a 2xx may ask for another attempt.
    ack_in_body: bool,
    /// What it carries for its owner.
    #[schema(value_type = Vec<Object>)]
    custom_config: Vec<ConfigEntry>,
    /// The account whose credentials deliveries use.
    #[schema(value_type = Option<String>)]
    service_account_id: Option<Tsid>,
    /// Which of those events it wants: expressions that must all hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    filter: Option<Filter>,
    /// The secret by which deliveries are signed. Only in the answer to the request that created the subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    signing_secret: Option<SecretText>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// A page of subscriptions.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SubscriptionsAnswer {
    /// The subscriptions by client and code.
    items: Vec<SubscriptionAnswer>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl SubscriptionText {
    /// The code that a new subscription must have.
    pub(crate) fn code(&self) -> Result<String> {
        self.code.clone().ok_or_else(|| ApiError::invalid("code is required"))
    }

    /// Refuses a change of what never changes.
    pub(crate) fn check_unchanged(&self, found: &Subscription) -> Result<()> {
        let client = found.client.map(|client| client.to_string());
        for (field, named, is) in
            [("code", &self.code, Some(&found.code)), ("clientId", &self.client_id, client.as_ref())]
        {
            if named.is_some() && named.as_ref() != is {
                return Err(ApiError::invalid(format!("{field} of a subscription cannot be changed: leave it out")));
            }
        }
        Ok(())
    }

    pub(crate) fn read(self) -> Result<SubscriptionBody> {
        let bindings = self.event_types.iter().enumerate().map(|(at, one)| one.read(at)).collect::<Result<_>>()?;
        let target = self.target.parse::<Target>()?;
        let default = SubscriptionBody::new(self.name, bindings, target);
        let id = |field: &str, text: Option<String>| {
            let bad = |_| ApiError::invalid(format!("{field} must be an id: 13 characters"));
            text.map(|text| text.parse::<Tsid>().map_err(bad)).transpose()
        };
        Ok(SubscriptionBody {
            description: self.description,
            queue: self.queue,
            mode: self.mode.unwrap_or_default(),
            dispatch_pool: id("dispatchPoolId", self.dispatch_pool_id)?,
            timeout_seconds: self.timeout_seconds.unwrap_or(default.timeout_seconds),
            max_retries: self.max_retries.unwrap_or(default.max_retries),
            retry_strategy: self.retry_strategy,
            max_age_seconds: self.max_age_seconds.unwrap_or(default.max_age_seconds),
            delay_seconds: self.delay_seconds.unwrap_or(default.delay_seconds),
            sequence: self.sequence.unwrap_or(default.sequence),
            data_only: self.data_only.unwrap_or(default.data_only),
            ack_in_body: self.ack_in_body.unwrap_or(default.ack_in_body),
            custom_config: self.custom_config.unwrap_or_default(),
            service_account: id("serviceAccountId", self.service_account_id)?,
            filter: self.filter.map(filter).transpose()?,
            ..default
        })
    }
}

/// A list of expressions; a single one counts as a list of one.
fn filter(json: Box<RawValue>) -> Result<Filter> {
    let json = match json.get().starts_with('{') {
        true => RawValue::from_string(format!("[{}]", json.get())).unwrap_or(json),
        false => json,
    };
    Filter::parse(json).map_err(|error| ApiError::invalid(error.within("/filter").to_string()))
}

impl Binding {
    fn read(&self, at: usize) -> Result<TypeBinding> {
        let place = format!("eventTypes[{at}]");
        let version = self.spec_version.as_deref().map(version).transpose();
        let version =
            version.map_err(|error| ApiError::invalid(format!("{place}.specVersion: {}", error.body.error)))?;
        match (self.event_type_id.as_deref(), self.event_type_code.as_deref()) {
            (Some(id), _) => {
                let bad = |_| ApiError::invalid(format!("{place}.eventTypeId must be an id: 13 characters"));
                let id: Tsid = id.parse().map_err(bad)?;
                // The code of a registered type is filled in by its id, and must not be another one.
                let code = self.event_type_code.clone().unwrap_or_else(|| id.to_string());
                Ok(TypeBinding { event_type: Some(id), code: pattern(&place, &code)?, version })
            }
            (None, Some(code)) => Ok(TypeBinding { event_type: None, code: pattern(&place, code)?, version }),
            (None, None) => Err(ApiError::invalid(format!("{place} must have an eventTypeId or an eventTypeCode"))),
        }
    }

    fn of(binding: &TypeBinding) -> Self {
        Self {
            event_type_id: binding.event_type.map(|id| id.to_string()),
            event_type_code: Some(binding.code.to_string()),
            spec_version: binding.version.map(|version: VersionNumber| version.to_string()),
        }
    }
}

fn pattern(place: &str, code: &str) -> Result<TypePattern> {
    code.parse().map_err(|error| ApiError::invalid(format!("{place}.eventTypeCode: {error}")))
}

impl SubscriptionsParams {
    /// The list that the parameters ask for, of what the caller may see.
    pub(crate) fn read(&self, visible: Visible) -> Result<SubscriptionsQuery> {
        let client = visible.client();
        let after = self.cursor.as_deref().map(|text| cursor::read_subscription(text, client)).transpose()?;
        Ok(SubscriptionsQuery { client: client.map(Some), after, limit: limit(self.limit.as_deref())? })
    }
}

impl SubscriptionAnswer {
    /// A subscription that was just created, with its secret.
    pub(crate) fn created(subscription: Subscription, secret: SecretText) -> Self {
        Self { signing_secret: Some(secret), ..Self::from(subscription) }
    }
}

impl From<Subscription> for SubscriptionAnswer {
    fn from(subscription: Subscription) -> Self {
        let body = subscription.body;
        Self {
            id: subscription.id,
            code: subscription.code,
            client_id: subscription.client,
            name: body.name,
            description: body.description,
            status: subscription.status,
            event_types: body.bindings.iter().map(Binding::of).collect(),
            target: body.target,
            queue: body.queue,
            mode: body.mode,
            dispatch_pool_id: body.dispatch_pool,
            timeout_seconds: body.timeout_seconds,
            max_retries: body.max_retries,
            retry_strategy: body.retry_strategy,
            max_age_seconds: body.max_age_seconds,
            delay_seconds: body.delay_seconds,
            sequence: body.sequence,
            data_only: body.data_only,
            ack_in_body: body.ack_in_body,
            custom_config: body.custom_config,
            service_account_id: body.service_account,
            filter: body.filter,
            signing_secret: None,
            created_at: subscription.created_at,
            updated_at: subscription.updated_at,
        }
    }
}

impl SubscriptionsAnswer {
    pub(crate) fn of(page: Listed<Subscription>, visible: Visible) -> Self {
        let next_cursor = page.next.map(|(of, code)| cursor::of_subscription(visible.client(), of, &code));
        Self { items: page.items.into_iter().map(SubscriptionAnswer::from).collect(), next_cursor }
    }
}
