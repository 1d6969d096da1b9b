//! Service accounts. What is secret comes in and never goes out, but for a signing secret that was just made.

use serde::{Deserialize, Serialize};
use tidegate::{Timestamp, Tsid};
use tidegate_dispatch::{Account, AccountAuth, AccountBody, AccountsQuery, Listed, SecretText, ShownAuth};
use utoipa::{IntoParams, ToSchema};

use super::event_types::limit;
use crate::access::Visible;
use crate::cursor;
use crate::error::{ApiError, Result};

/// The id of a service account in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct AccountPath {
    /// The id of the service account.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
}

/// A service account, new or changed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({ "code": "shop", "name": "Shop", "authType": "BEARER", "token": "a-token" }))]
pub(crate) struct AccountText {
    /// Unique per client; it never changes. A change may leave it out.
    #[schema(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9._-]+$")]
    code: Option<String>,
    /// The client whose subscriptions and jobs may name it, and no others; that of the caller if absent, for an unscoped caller
    /// the anchor level. It cannot be changed.
    #[schema(min_length = 13, max_length = 13)]
    pub(crate) client_id: Option<String>,
    /// A name for people.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    /// What receivers know it by besides signatures: `NONE`, `BEARER` (a token) or `BASIC` (a user name and a password).
    #[schema(example = "BEARER")]
    auth_type: String,
    /// With `BEARER`: the token. A change that leaves it out keeps the one that is stored. It is never shown.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 2048, write_only)]
    token: Option<SecretText>,
    /// With `BASIC`: the user name.
    #[schema(max_length = 2048)]
    username: Option<String>,
    /// With `BASIC`: the password. A change that leaves it out keeps the one that is stored. It is never shown.
    #[schema(value_type = Option<String>, max_length = 2048, write_only)]
    password: Option<SecretText>,
}

/// Which service accounts to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AccountsParams {
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

/// A service account: in its name webhooks are sent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AccountAnswer {
    /// The id.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    id: Tsid,
    /// The code, which never changes.
    #[schema(example = "shop")]
    code: String,
    /// The client whose subscriptions and jobs may name it, and no others; `null` for the anchor level: those of no client.
    #[schema(value_type = Option<String>)]
    client_id: Option<Tsid>,
    /// A name for people.
    name: String,
    /// `NONE`, `BEARER` or `BASIC`.
    #[schema(example = "BEARER")]
    auth_type: &'static str,
    /// The user name, with `BASIC`.
    username: Option<String>,
    /// Whether a token is stored.
    token_set: bool,
    /// Whether a password is stored.
    password_set: bool,
    /// The secret that signs webhooks of jobs in its name (`whsec_…`); only in the answer to the request that created the
    /// account.
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

/// A page of service accounts.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AccountsAnswer {
    /// The accounts by client and code.
    items: Vec<AccountAnswer>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl AccountText {
    /// The code that a new account must have.
    pub(crate) fn code(&self) -> Result<String> {
        self.code.clone().ok_or_else(|| ApiError::invalid("code is required"))
    }

    /// Refuses a change of what never changes.
    pub(crate) fn check_unchanged(&self, found: &Account) -> Result<()> {
        let client = found.client.map(|client| client.to_string());
        let fixed = [("code", &self.code, Some(&found.code)), ("clientId", &self.client_id, client.as_ref())];
        match fixed.into_iter().find(|(_, named, is)| named.is_some() && named.as_ref() != *is) {
            Some((field, ..)) => {
                Err(ApiError::invalid(format!("{field} of a service account cannot be changed: leave it out")))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn read(self) -> Result<AccountBody> {
        let (has_token, has_user) = (self.token.is_some(), self.username.is_some() || self.password.is_some());
        // The texts repeat nothing: a secret may be in the wrong field.
        let auth = match self.auth_type.as_str() {
            "NONE" if has_token || has_user => {
                return Err(ApiError::invalid(
                    "token, username and password are not for authType NONE: leave them out",
                ));
            }
            "NONE" => AccountAuth::None,
            "BEARER" if has_user => {
                return Err(ApiError::invalid("username and password are for authType BASIC only: leave them out"));
            }
            "BEARER" => AccountAuth::Bearer { token: self.token },
            "BASIC" if has_token => return Err(ApiError::invalid("token is for authType BEARER only: leave it out")),
            "BASIC" => {
                let missing = || ApiError::invalid("username is required with authType BASIC");
                AccountAuth::Basic { username: self.username.ok_or_else(missing)?, password: self.password }
            }
            _ => return Err(ApiError::invalid("authType must be NONE, BEARER or BASIC")),
        };
        Ok(AccountBody { name: self.name, auth })
    }
}

impl AccountsParams {
    /// The list that the parameters ask for, of what the caller may see.
    pub(crate) fn read(&self, visible: Visible) -> Result<AccountsQuery> {
        let client = visible.client();
        let after = self.cursor.as_deref().map(|text| cursor::read_account(text, client)).transpose()?;
        Ok(AccountsQuery { client: client.map(Some), after, limit: limit(self.limit.as_deref())? })
    }
}

impl AccountAnswer {
    /// An account that was just created, with its secret.
    pub(crate) fn created(account: Account, secret: SecretText) -> Self {
        Self { signing_secret: Some(secret), ..Self::from(account) }
    }
}

impl From<Account> for AccountAnswer {
    fn from(account: Account) -> Self {
        let (auth_type, username) = match account.auth {
            ShownAuth::None => ("NONE", None),
            ShownAuth::Bearer => ("BEARER", None),
            ShownAuth::Basic { username } => ("BASIC", Some(username)),
        };
        Self {
            id: account.id,
            code: account.code,
            client_id: account.client,
            name: account.name,
            auth_type,
            token_set: auth_type == "BEARER",
            password_set: auth_type == "BASIC",
            username,
            signing_secret: None,
            created_at: account.created_at,
            updated_at: account.updated_at,
        }
    }
}

impl AccountsAnswer {
    pub(crate) fn of(page: Listed<Account>, visible: Visible) -> Self {
        let next_cursor = page.next.map(|(of, code)| cursor::of_account(visible.client(), of, &code));
        Self { items: page.items.into_iter().map(AccountAnswer::from).collect(), next_cursor }
    }
}
