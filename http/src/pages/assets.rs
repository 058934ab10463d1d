//! The stylesheet, the script and the images, embedded in the binary. Their URLs contain a hash of the content.

use std::fmt::Write as _;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "assets/"]
struct Assets;

/// The number of bytes of the hash in a URL.
const HASH_BYTES: usize = 8;

/// Returns the path of an asset below the root.
pub(super) fn path(name: &str) -> String {
    match Assets::get(name) {
        Some(file) => format!("/assets/{}/{name}", short(&file.metadata.sha256_hash())),
        None => format!("/assets/none/{name}"),
    }
}

fn short(hash: &[u8]) -> String {
    hash.iter().take(HASH_BYTES).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `GET /assets/{hash}/{name}`: cached for a year, because the content of a URL never changes.
pub(super) async fn get(Path((hash, name)): Path<(String, String)>) -> Response {
    let Some(file) = Assets::get(&name) else {
        return (StatusCode::NOT_FOUND, "no such asset").into_response();
    };
    let kind = match name.rsplit('.').next() {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    };
    // A URL from before an update gets the current content, uncached.
    let fresh = hash == short(&file.metadata.sha256_hash());
    let keep = if fresh { "public, max-age=31536000, immutable" } else { "no-cache" };
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, keep)], file.data).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_contain_the_hash_of_the_content() {
        for name in ["duly.css", "duly.js", "palette.js", "commands.js", "uplot.js", "mark.svg", "uplot.LICENSE"] {
            assert!(!path(name).contains("/none/"), "{name} is there");
        }
        assert_ne!(path("duly.css").split('/').nth(2), path("duly.js").split('/').nth(2));
    }
}
