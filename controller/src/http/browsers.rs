//! What keeps pages of other sites out: a browser that such a page commands can't leave these headers out,
//! and can't forge them.

use actix_web::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, ORIGIN};
use actix_web::http::{Method, Uri};

use super::error::ApiError;
use crate::host_names::HostNames;

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Over the Unix socket, which no browser speaks.
    Socket,
    /// Over TCP.
    Plain,
    /// Over TLS.
    Encrypted,
}

/// Refuses what a page of another site could make a browser send. The rules hold for every method.
///
/// # Errors
///
/// [`ApiError::Forbidden`] states which header is at fault.
pub fn check(
    channel: Channel,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    hosts: &HostNames,
) -> Result<(), ApiError> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"));
    let host = text(HOST.as_str()).filter(|_| headers.get_all(HOST).count() == 1);
    let Some(host) = host.filter(|host| hosts.has(host)) else {
        return Err(refused(
            format!("the Host header is {:?}", text(HOST.as_str()).unwrap_or_default()),
            format!("one of the names {}; --hosts of the controller adds others", hosts.listed()),
        ));
    };
    if let Some(target) = uri.authority()
        && !hosts.has(target.as_str())
    {
        let expected = "a path, or a URL with one of the controller's own names".to_owned();
        return Err(refused(format!("the request is for {target}"), expected));
    }
    let (origin, site) = (text(ORIGIN.as_str()), text("sec-fetch-site"));
    if channel == Channel::Socket {
        if origin.is_some() || site.is_some() {
            let problem = "browsers can't use a Unix socket, and this request looks like a \
                           browser's";
            return Err(refused(problem.to_owned(), "a request without Origin".to_owned()));
        }
        return Ok(());
    }
    if let Some(origin) = origin {
        let scheme = if channel == Channel::Encrypted { "https://" } else { "http://" };
        // "null", of sandboxed frames and files, is nobody's own.
        if origin.strip_prefix(scheme) != Some(host) {
            return Err(refused(
                format!("the request comes from a page of {origin:?}"),
                "a page of the controller itself, or a program".to_owned(),
            ));
        }
    }
    let reads = method == Method::GET || method == Method::HEAD;
    match site {
        None | Some("same-origin") => {}
        // Typed into the address bar.
        Some("none") if reads => {}
        Some(site) => {
            return Err(refused(
                format!("a browser sends it for another page (Sec-Fetch-Site: {site})"),
                "a page of the controller itself, or a program".to_owned(),
            ));
        }
    }
    // A page may send forms and plain text anywhere without a question before. Any of these headers makes its
    // browser send a preflight request first, and no answer here ever allows it.
    let json = text(CONTENT_TYPE.as_str()).is_some_and(|media_type| {
        let essence = media_type.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/json")
    });
    let is_deliberate =
        json || headers.contains_key(AUTHORIZATION) || headers.contains_key("x-tessera");
    if !reads && !is_deliberate {
        return Err(refused(
            "a page of any site could send this request".to_owned(),
            "Content-Type: application/json, Authorization, or X-Tessera: 1".to_owned(),
        ));
    }
    Ok(())
}

fn refused(problem: String, expected: String) -> ApiError {
    ApiError::Forbidden { problem, expected }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

    fn verdict(channel: Channel, method: &str, uri: &str, headers: &[(&str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        let hosts = HostNames::with(["gpu.lab".to_owned()]);
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        check(channel, &method, &uri.parse().unwrap(), &map, &hosts).is_ok()
    }

    #[test]
    fn requests_of_other_sites_are_refused_whatever_their_method() {
        let token = ("authorization", "Bearer x");
        let bad: &[&[(&str, &str)]] = &[
            &[],
            &[("host", "evil.example")],
            &[("host", "localhost.evil.example")],
            &[("host", "localhost:7070:80")],
            &[("host", "localhost"), ("host", "evil.example")],
            &[("host", "localhost/@evil.example")],
            &[("host", "localhost"), ("origin", "http://evil.example")],
            &[("host", "localhost"), ("origin", "http://localhost:8888")],
            &[("host", "localhost"), ("origin", "https://localhost")],
            &[("host", "localhost"), ("origin", "null")],
            &[("host", "localhost"), ("sec-fetch-site", "cross-site")],
            &[("host", "localhost"), ("sec-fetch-site", "same-site")],
        ];
        for method in METHODS {
            for headers in bad {
                let headers = [headers, &[token][..]].concat();
                assert!(
                    !verdict(Channel::Plain, method, "/v1/jobs", &headers),
                    "{method} {headers:?}"
                );
            }
            let absolute = "http://evil.example/v1/jobs";
            assert!(!verdict(Channel::Plain, method, absolute, &[("host", "localhost"), token]));
        }
    }

    #[test]
    fn no_simple_request_changes_anything() {
        let host = ("host", "gpu.lab:7070");
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            for form in [
                None,
                Some("text/plain"),
                Some("application/x-www-form-urlencoded"),
                Some("multipart/form-data; boundary=application/json"),
            ] {
                let mut headers = vec![host];
                headers.extend(form.map(|form| ("content-type", form)));
                assert!(
                    !verdict(Channel::Plain, method, "/v1/jobs", &headers),
                    "{method} {form:?}"
                );
            }
            for header in [
                ("content-type", "application/json; charset=utf-8"),
                ("authorization", "Bearer x"),
                ("x-tessera", "1"),
            ] {
                assert!(verdict(Channel::Plain, method, "/v1/jobs", &[host, header]));
            }
        }
    }

    #[test]
    fn programs_and_the_controllers_own_pages_get_through() {
        for host in ["localhost", "127.0.0.1:7070", "[::1]:7070", "GPU.lab", "gpu.lab:443"] {
            assert!(verdict(Channel::Plain, "GET", "/v1/jobs", &[("host", host)]), "{host}");
        }
        let own = [("host", "gpu.lab"), ("origin", "https://gpu.lab"), ("x-tessera", "1")];
        assert!(verdict(Channel::Encrypted, "POST", "/v1/jobs", &own));
        let typed = [("host", "gpu.lab"), ("sec-fetch-site", "none")];
        assert!(verdict(Channel::Plain, "GET", "/docs/", &typed));
        assert!(verdict(Channel::Socket, "POST", "/v1/jobs", &[("host", "localhost")]));
        let browser = [("host", "localhost"), ("origin", "http://localhost")];
        assert!(!verdict(Channel::Socket, "POST", "/v1/jobs", &browser));
    }
}
