//! Where a redirect leads (`Location`, RFC 9110 10.2.2; relative ones by RFC 3986 5.2, as far as servers send them).

/// The address that an answer of `url` names, if it is one that is followed, or what is wrong with it.
pub(super) fn next(url: &str, location: &str) -> Result<String, String> {
    let location = location.trim();
    let location = location.split('#').next().unwrap_or_default();
    if location.is_empty() || !location.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("leads to no address".into());
    }
    if let Some((scheme, rest)) = scheme(location) {
        let lower = scheme.to_ascii_lowercase();
        return match (lower.as_str(), rest.strip_prefix("//")) {
            ("http" | "https", Some(host)) if !host.starts_with('/') && !host.is_empty() => {
                Ok(format!("{lower}:{rest}"))
            }
            ("http" | "https", _) => Err("leads to no address".into()),
            _ => Err(format!("leads to {scheme}:, and only http and https are followed")),
        };
    }
    let origin = origin(url);
    let path = url[origin.len()..].split(['?', '#']).next().unwrap_or_default();
    Ok(match location {
        _ if location.starts_with("//") => format!("{}:{location}", scheme(url).map_or("https", |(scheme, _)| scheme)),
        _ if location.starts_with('/') => format!("{origin}{location}"),
        _ if location.starts_with('?') => format!("{origin}{path}{location}"),
        _ => format!("{origin}{}/{location}", path.rsplit_once('/').map_or("", |(folder, _)| folder)),
    })
}

/// Scheme, host and port of an address that begins with a scheme.
pub(super) fn origin(url: &str) -> &str {
    let begin = url.find("://").map_or(0, |at| at + 3);
    &url[..begin + url[begin..].find(['/', '?', '#', '\\']).unwrap_or(url.len() - begin)]
}

/// Whether what is meant for one may be told the other.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    origin(one).eq_ignore_ascii_case(origin(other))
}

fn scheme(address: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = address.split_once(':')?;
    let is_one = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    (scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(is_one)).then_some((scheme, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_they_say() {
        for (location, expected) in [
            ("https://cdn.example/a?b=c#d", "https://cdn.example/a?b=c"),
            ("HTTP://cdn.example", "http://cdn.example"),
            ("//cdn.example/a", "https://cdn.example/a"),
            ("/api/a", "https://hub.example:8/api/a"),
            ("b?c:d", "https://hub.example:8/o/m/b?c:d"),
            ("?x", "https://hub.example:8/o/m/f?x"),
        ] {
            assert_eq!(next("https://hub.example:8/o/m/f?q", location).as_deref(), Ok(expected), "{location}");
        }
        assert_eq!(next("http://h", "x").as_deref(), Ok("http://h/x"));
    }

    #[test]
    fn only_http_is_followed() {
        for (location, part) in [
            ("file:///etc/passwd", "leads to file:, and only http and https"),
            ("ftp://h/x", "leads to ftp:"),
            ("data:text/plain,x", "leads to data:"),
            ("http:///etc/passwd", "no address"),
            ("http:x", "no address"),
            ("", "no address"),
            ("/a b", "no address"),
            ("/a\u{7f}", "no address"),
        ] {
            let why = next("http://h/x", location).unwrap_err();
            assert!(why.contains(part), "{location}: {why}");
        }
    }

    #[test]
    fn places_are_the_same_by_scheme_host_and_port() {
        assert!(is_same("https://h:8/a", "https://H:8?b"));
        for other in ["http://h:8/a", "https://h/a", "https://h:8@other/a", "https://h:80/a", "https://h:8.other/a"] {
            assert!(!is_same("https://h:8/a", other), "{other}");
        }
    }
}
