//! The API's description is a file of the repository, so that changes of it are seen.

use std::path::PathBuf;

use tessera_controller::http;

use super::rig::Rig;

#[test]
fn the_committed_description_is_the_one_that_is_served() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let served = http::openapi().to_pretty_json().unwrap() + "\n";

    if std::env::var_os("TESSERA_WRITE_OPENAPI").is_some() {
        std::fs::write(&file, &served).unwrap();
    }

    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == served,
        "docs/openapi.json is out of date: run the tests once with TESSERA_WRITE_OPENAPI=1"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documentation_is_served_without_any_other_site() {
    let rig = Rig::start().await;

    let page = rig.get("/docs").await;
    assert_eq!(page.url().path(), "/docs/");
    assert_eq!(page.status(), 200);
    let page = page.text().await.unwrap();
    assert!(page.contains("swagger-ui"), "{page}");
    assert!(!page.contains("https://"), "{page}");

    let start = rig.get("/docs/swagger-initializer.js").await;
    assert_eq!(start.status(), 200);
    assert!(start.text().await.unwrap().contains("/openapi.json"));

    let description: serde_json::Value = rig.get("/openapi.json").await.json().await.unwrap();
    assert_eq!(description["openapi"], "3.1.0");
}
