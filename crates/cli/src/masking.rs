//! Masks secrets in settings that are shown.

/// A value with its secrets masked: the password of a URL, and secrets in its query or in `key=value` pairs.
pub(crate) fn without_password(value: &str) -> String {
    let mut shown = value.to_owned();
    if let Some((scheme, rest)) = value.split_once("://")
        && let Some((user, host)) = rest.rsplit_once('@')
        && let Some((name, _)) = user.split_once(':')
    {
        shown = format!("{scheme}://{name}:***@{host}");
    }
    let mut from = 0;
    while let Some((at, word)) = first_secret(&shown[from..]) {
        let start = from + at + word.len();
        let rest = &shown[start..];
        let length = match rest.chars().next() {
            Some(quote @ ('\'' | '"')) => rest[1..].find(quote).map_or(rest.len(), |end| end + 2),
            _ => rest.find(|c: char| c == '&' || c.is_whitespace()).unwrap_or(rest.len()),
        };
        shown.replace_range(start..start + length, "***");
        from = start + 3;
    }
    shown
}

/// The position and the name of the first secret. `password=` also finds `sslpassword=`.
fn first_secret(text: &str) -> Option<(usize, &'static str)> {
    let lower = text.to_ascii_lowercase();
    ["password=", "passwd=", "secret=", "token=", "apikey=", "api_key="]
        .into_iter()
        .filter_map(|word| Some((lower.find(word)?, word)))
        .min()
}
