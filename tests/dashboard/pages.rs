//! The page, as people use it.

use std::path::PathBuf;

use serde_json::{Value, json};
use serin::api::canary::Phase;

use crate::browser::{Browser, Tab};
use crate::support::Folder;
use crate::world::{World, url};

const WIDTHS: [(u32, u32); 3] = [(400, 860), (820, 1000), (1280, 900)];

fn spec(steps: Value) -> Value {
    json!({ "analysis": {
        "interval": "1s", "warmup": "0s", "threshold": 2, "stepWeights": null, "steps": steps,
        "metrics": [{"name": "request-success-rate"}, {"name": "request-duration"}],
    } })
}

/// Nothing is wrong with the page, and it asks nobody else for anything.
async fn is_sound(tab: &Tab) {
    assert_eq!(tab.complaints(), [""; 0]);
    let origin = tab.eval("location.origin").await;
    let origin = origin.as_str().expect("an origin");
    for address in tab.requested() {
        assert!(address.starts_with(origin) || address == "about:blank", "{address}");
    }
    assert_eq!(tab.axe().await, [""; 0], "{}", tab.text().await);
}

/// At three widths, light and dark; kept if `SERIN_SCREENSHOTS` names a folder.
pub async fn shots(tab: &Tab, name: &str) {
    let kept = std::env::var_os("SERIN_SCREENSHOTS").map(PathBuf::from);
    let temporary = Folder::new("screenshots");
    let folder = kept.unwrap_or_else(|| temporary.path().to_owned());
    for (width, height) in WIDTHS {
        for dark in [false, true] {
            tab.size(width, height).await;
            tab.dark(dark).await;
            // Charts follow the width at the next look.
            tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
            let wider = tab.eval("document.documentElement.scrollWidth > innerWidth").await;
            assert_eq!(wider, false, "{name} is wider than {width}");
            assert_eq!(tab.axe().await, [""; 0], "{name} at {width}, dark: {dark}");
            let mode = if dark { "dark" } else { "light" };
            tab.screenshot(&folder.join(format!("{name}-{width}-{mode}.webp"))).await;
        }
    }
    tab.dark(false).await;
    tab.size(1280, 900).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_watched_and_approved_until_it_is_promoted() {
    let world = World::new().await.with_web().await;
    let (_controller, _traffic, server) = (world.start().await, world.traffic(), world.serve(0).await);
    world.canary(spec(json!([{"weight": 20}, {"name": "qa", "weight": 50, "approval": {}}]))).await;
    world.reaches(Phase::Initialized).await;
    let (browser, origin) = (Browser::start().await, format!("http://{}", server.address));
    let (olga, vera) = (browser.tab().await, browser.tab().await);
    olga.open(&url(&server, "olga")).await;
    olga.shows("Initialized").await;
    assert_eq!(olga.eval("location.hash").await, "#/", "the token does not stay in the address");
    is_sound(&olga).await;
    // By keyboard: to the first row, and into it.
    olga.key("j").await;
    olga.key("Enter").await;
    olga.until("location.hash === '#/c/default/web'").await;
    olga.shows("No release has ended yet").await;

    world.push("shop/web:v2").await;
    olga.shows("Progressing").await;
    olga.shows("image shop/web:v1 → shop/web:v2").await;
    olga.shows("Awaiting approval").await;
    olga.shows("serin approve web -n default --gate 'qa'").await;
    olga.until("document.querySelectorAll('svg.chart .line.canary').length >= 2").await;
    shots(&olga, "release").await;
    is_sound(&olga).await;

    // A viewer sees the gate and no button, and is refused without one.
    vera.open(&url(&server, "vera")).await;
    vera.shows("Needs a person").await;
    vera.click("a.row", "web").await;
    vera.shows("You may not approve it").await;
    assert_eq!(vera.eval("document.querySelectorAll('main button').length").await, 0);
    is_sound(&vera).await;
    let refused = "fetch('/api/v1/namespaces/default/canaries/web/approve', {method: 'POST',
        headers: {authorization: `Bearer ${sessionStorage.getItem('serin-token')}`}})
        .then(async (response) => `${response.status} ${await response.text()}`)";
    let refused = vera.eval(refused).await;
    let refused = refused.as_str().expect("an answer");
    assert!(refused.starts_with("403 ") && refused.contains("vera may not do that to web"), "{refused}");

    olga.click("button", "Approve").await;
    olga.click("dialog button", "approve").await;
    olga.shows("approve qa: accepted").await;
    world.reaches(Phase::Succeeded).await;
    olga.shows("Succeeded").await;
    olga.shows("promoted").await;
    vera.shows("Succeeded").await;
    // A link to the release that is over.
    olga.click(".past a", "").await;
    olga.until("document.querySelectorAll('.past.chosen').length === 1").await;
    let link = olga.eval("location.href").await;
    vera.open(&origin).await;
    vera.open(link.as_str().expect("an address")).await;
    vera.until("document.querySelectorAll('.past.chosen').length === 1").await;
    is_sound(&olga).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_is_explained_and_silence_is_drawn() {
    let world = World::new().await.with_web().await;
    let (_controller, traffic, server) = (world.start().await, world.traffic(), world.serve(0).await);
    world.canary(spec(json!([{"weight": 20}, {"weight": 50, "iterations": 1000}]))).await;
    world.reaches(Phase::Initialized).await;
    let (browser, origin) = (Browser::start().await, format!("http://{}", server.address));
    let tab = browser.tab().await;
    tab.open(&url(&server, "olga")).await;
    tab.shows("Initialized").await;
    world.push("shop/web:v2-errors-50").await;
    tab.shows("Rolled back").await;
    tab.until("document.querySelector('.person .row')?.textContent.includes('web')").await;
    shots(&tab, "list").await;
    tab.click("a.row", "web").await;
    tab.shows("was rolled back").await;
    tab.shows("request-success-rate").await;
    tab.until("document.querySelector('.why.bad')?.textContent.includes('request-success-rate')").await;
    shots(&tab, "rollback").await;
    is_sound(&tab).await;

    // The next one is healthy, and then nobody sends requests any more.
    world.push("shop/web:v3").await;
    tab.until("document.querySelector('.track .current')?.textContent.includes('50 %')").await;
    tab.until("document.querySelectorAll('svg.chart .band').length >= 2").await;
    drop(traffic);
    tab.shows("no data since").await;
    shots(&tab, "silence").await;
    is_sound(&tab).await;

    // Keys: back to the list, filter, and the filter in the address.
    tab.key("Escape").await;
    tab.until("document.activeElement?.classList.contains('row')").await;
    tab.key("/").await;
    tab.until("document.activeElement?.id === 'filter'").await;
    tab.type_text("ns:elsewhere").await;
    tab.shows("0 of 1 Canary").await;
    assert_eq!(tab.eval("location.hash").await, "#/?q=ns%3Aelsewhere");
    tab.key("Escape").await;
    tab.shows("1 Canary").await;
    tab.key("Escape").await;
    tab.key("?").await;
    tab.shows("Approve the gate that waits").await;
    is_sound(&tab).await;
    tab.open(&format!("{origin}/#/?q=state:progress")).await;
    tab.until("document.querySelectorAll('a.row').length === 1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_stream_reconnects_and_misses_nothing() {
    let world = World::new().await.with_web().await;
    let (_controller, server) = (world.start().await, world.serve(0).await);
    world.canary(spec(json!([{"weight": 20}]))).await;
    world.reaches(Phase::Initialized).await;
    let browser = Browser::start().await;
    let tab = browser.tab().await;
    tab.open(&url(&server, "vera")).await;
    tab.shows("Initialized").await;
    tab.until("document.querySelector('.stream.live')").await;
    let port = server.address.port();
    drop(server);
    tab.until("document.querySelector('.stream.down, .stream.failing')").await;
    world.push("shop/web:v2").await;
    world.reaches(Phase::Progressing).await;
    let _server = world.serve(port).await;
    tab.until("document.querySelector('.stream.live')").await;
    tab.shows("Progressing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_valid_token_the_page_asks_for_one() {
    let world = World::new().await.with_web().await;
    let (_controller, server) = (world.start().await, world.serve(0).await);
    world.canary(spec(json!([{"weight": 20}]))).await;
    world.reaches(Phase::Initialized).await;
    let browser = Browser::start().await;
    let tab = browser.tab().await;
    tab.open(&format!("http://{}/", server.address)).await;
    tab.shows("Paste a token of this cluster").await;
    is_sound(&tab).await;
    tab.type_text("token-of-vera").await;
    tab.key("Enter").await;
    tab.shows("Initialized").await;
    tab.shows("vera").await;
    // Another tab does not have it.
    let other = browser.tab().await;
    other.open(&format!("http://{}/", server.address)).await;
    other.shows("Paste a token of this cluster").await;
    other.type_text("made-up").await;
    other.key("Enter").await;
    other.shows("not authenticated").await;
    // One who may see nothing sees nothing.
    let nora = browser.tab().await;
    nora.open(&url(&server, "nora")).await;
    nora.shows("No Canary that you may see").await;
    assert_eq!(nora.eval("document.querySelectorAll('a.row').length").await, 0);
    nora.open(&format!("http://{}/#/c/default/web", server.address)).await;
    nora.shows("may not get canaries").await;
}
