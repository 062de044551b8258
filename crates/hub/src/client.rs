//! The hub as a client sees it: requests with redirects, the token, timeouts.
//!
//! Redirects are followed here, not by the HTTP client, which would hand the token to another port of the same host.

use std::io;
use std::sync::Arc;

use ureq::http::header::{AUTHORIZATION, LOCATION, RANGE};
use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Timeout};

use crate::patience::Trouble;
use crate::progress::installed;
use crate::refusal::{Refusal, Wanted};
use crate::settings::Settings;
use crate::{Error, Progress, Result};

/// Redirects followed for one request.
const MAX_REDIRECTS: usize = 10;

/// A hub to list and download from.
pub struct Hub {
    pub(crate) settings: Settings,
    pub(crate) progress: Arc<dyn Progress>,
    agent: Agent,
}

impl Hub {
    /// The hub of this process's environment.
    pub fn from_env() -> Result<Self> {
        Self::new(Settings::from_env()?)
    }

    /// A hub by its settings. Nothing is sent yet.
    pub fn new(settings: Settings) -> Result<Self> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("ferrotune/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(settings.connect_timeout))
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_recv_response(Some(settings.read_timeout))
            .timeout_per_read(Some(settings.read_timeout));
        if !settings.use_proxy {
            config = config.proxy(None);
        }
        if let Some(path) = &settings.certificates {
            let what = "the certificates to trust";
            let pem = std::fs::read(path).map_err(|cause| Error::Setting { path: path.clone(), what, cause })?;
            let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            if certificates.is_empty() {
                return Err(Error::BadCertificates { path: path.clone() });
            }
            let roots = RootCerts::new_with_certs(&certificates);
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        let agent = Agent::new_with_config(config.build());
        Ok(Self { settings, progress: installed(), agent })
    }

    /// The same hub, telling somebody else how downloads go.
    #[must_use]
    pub fn with_progress(mut self, progress: Arc<dyn Progress>) -> Self {
        self.progress = progress;
        self
    }

    /// What it was made from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Asks for `url`, from the byte `from` on if that is not 0. An answer is a success, or 416 where bytes were asked for
    /// that are not there.
    pub(crate) fn get(&self, url: &str, from: u64, wanted: Wanted<'_>) -> std::result::Result<Response<Body>, Trouble> {
        let mut at = url.to_owned();
        let home = origin(&self.settings.endpoint);
        for _ in 0..=MAX_REDIRECTS {
            let by_hub = origin(&at) == home;
            let mut request = self.agent.get(&at);
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            if let Some(token) = self.settings.token.as_ref().filter(|_| by_hub) {
                request = request.header(AUTHORIZATION, token.bearer());
            }
            let response = request.call().map_err(|cause| self.trouble(&at, cause))?;
            let status = response.status().as_u16();
            match status {
                200..=299 => return Ok(response),
                416 if from > 0 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => at = redirected(&at, &response)?,
                _ => {
                    let refusal = Refusal { url: shown(&at), by_hub, status, headers: response.headers() };
                    return Err(refusal.trouble(wanted, &self.settings));
                }
            }
        }
        Err(Trouble::last(Error::Redirects { url: shown(url).to_owned(), limit: MAX_REDIRECTS }))
    }

    /// What a request without an answer means.
    pub(crate) fn trouble(&self, url: &str, cause: ureq::Error) -> Trouble {
        let host = || origin(url).unwrap_or_default();
        let unreachable = |reason: String| Trouble::passing(Error::Unreachable { host: host(), reason });
        match cause {
            ureq::Error::HostNotFound => unreachable("no such host, or no network".to_owned()),
            ureq::Error::ConnectionFailed => unreachable("no connection".to_owned()),
            ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
                unreachable(format!("no connection after {} s", self.settings.connect_timeout.as_secs_f64()))
            }
            ureq::Error::Io(cause) if is_about_connecting(cause.kind()) => unreachable(cause.kind().to_string()),
            // The kind that name look-ups fail with has no name.
            ureq::Error::Io(cause) if cause.to_string().starts_with("failed to lookup address") => {
                unreachable("no such host, or no network".to_owned())
            }
            ureq::Error::Rustls(cause) => Trouble::last(Error::Unreachable { host: host(), reason: cause.to_string() }),
            // TLS that fails in the middle of I/O.
            ureq::Error::Io(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                Trouble::last(Error::Unreachable { host: host(), reason: cause.to_string() })
            }
            ureq::Error::Timeout(_) => {
                let secs = self.settings.read_timeout.as_secs_f64();
                Trouble::passing(Error::TimedOut { url: shown(url).to_owned(), secs })
            }
            cause => {
                let reason = match cause {
                    ureq::Error::Io(cause) if is_about_hanging_up(cause.kind()) => "the other side hung up".to_owned(),
                    ureq::Error::Io(cause) => cause.to_string(),
                    cause => cause.to_string(),
                };
                Trouble::passing(Error::Dropped { url: shown(url).to_owned(), reason })
            }
        }
    }
}

/// The address that a redirect leads to.
fn redirected(from: &str, response: &Response<Body>) -> std::result::Result<String, Trouble> {
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let base = origin(from).unwrap_or_default();
    let to = if location.starts_with("//") {
        format!("{}:{location}", base.split(':').next().unwrap_or_default())
    } else if location.starts_with('/') {
        format!("{base}{location}")
    } else {
        location.to_owned()
    };
    if origin(&to).is_none() {
        let reason = format!("expected an address to go on to, found `{}`", shown(location));
        let url = shown(from).to_owned();
        return Err(Trouble::last(Error::BadAnswer { url, expected: "redirect", reason }));
    }
    Ok(to)
}

/// Whether an error can only stem from making a connection.
fn is_about_connecting(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable
    )
}

/// Whether an error stems from a connection that the other side has ended.
fn is_about_hanging_up(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
    )
}

/// Scheme, host and port of an address of the web.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let default_port = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let authority = uri.authority()?;
    let host = authority.host().to_ascii_lowercase();
    match authority.port_u16().unwrap_or(default_port) {
        port if port == default_port => Some(format!("{scheme}://{host}")),
        port => Some(format!("{scheme}://{host}:{port}")),
    }
}

/// An address as messages show it: signed ones carry secrets behind the `?`.
pub(crate) fn shown(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_scheme_host_and_port() {
        assert_eq!(origin("https://Host/a").unwrap(), "https://host");
        assert_eq!(origin("https://host:443/b?c"), origin("https://host"));
        assert_ne!(origin("http://host:8080"), origin("http://host:8081"));
        assert_ne!(origin("http://host"), origin("https://host"));
        assert_eq!(origin("http://user@host/").unwrap(), "http://host");
        for none in ["/a", "ftp://host", "", "not an address"] {
            assert_eq!(origin(none), None, "{none}");
        }
    }
}
