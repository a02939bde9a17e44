//! `speculative.lossy_lenience`: refused beside what it would break, and called lossy in answers and in the model's
//! object.

use foretoken::Promise;
use serde_json::{Value, json};

use crate::bodies::{seeded, texts, with};
use crate::test_server::{TestServer, drafting, shared};

fn complete(more: Value) -> Value {
    let more = with(json!({ "speculative.type": "draft", "speculative.n_min": 2 }), more);
    drafting().post("/v1/completions", &seeded(31, more)).success()
}

#[test]
fn it_is_refused_by_name() {
    for wrong in [json!(0), json!(-0.5), json!(1.5), json!("much")] {
        let body = seeded(1, json!({ "speculative.lossy_lenience": wrong, "speculative.verify": "rejection" }));
        let (param, message) = shared().post("/v1/completions", &body).error(400);
        assert_eq!(param.as_deref(), Some("speculative.lossy_lenience"), "{message}");
    }
    for verify in ["exact", "block"] {
        let body = seeded(1, json!({ "speculative": { "lossy_lenience": 0.5, "verify": verify } }));
        let (param, message) = shared().post("/v1/completions", &body).error(400);
        assert_eq!(param.as_deref(), Some("speculative.lossy_lenience"), "{message}");
        let expected = "speculative.lossy_lenience 0.5: expected speculative.verify rejection beside it, or";
        assert_eq!(message, format!("{expected} temperature 0, since it is lossy, found {verify}"));
    }
}

#[test]
fn answers_say_that_they_are_lossy() {
    for more in [json!({ "temperature": 0 }), json!({ "temperature": 1.2, "speculative.verify": "rejection" })] {
        let lossy = complete(with(more.clone(), json!({ "speculative.lossy_lenience": 0.05 })));
        assert_eq!(lossy["timings"]["lossy_lenience"], 0.05, "{lossy}");
        let plain = complete(with(more.clone(), json!({ "speculative.lossy_lenience": 1 })));
        assert!(plain["timings"].get("lossy_lenience").is_none(), "{plain}");
        let off = complete(with(
            more,
            json!({ "speculative.lossy_lenience": 0.05, "speculative.n_max": 0, "speculative.n_min": 0 }),
        ));
        assert!(off["timings"].get("lossy_lenience").is_none(), "nothing is drafted: {off}");
    }
    let greedy = json!({ "temperature": 0, "speculative.verify": "block" });
    let lossy = complete(with(greedy.clone(), json!({ "speculative.lossy_lenience": 0.02 })));
    assert_ne!(texts(&lossy), texts(&complete(greedy)));
}

#[test]
fn the_servers_own_lenience_is_the_default_and_requests_change_it() {
    let server = TestServer::open(|settings, _| {
        settings.speculation.verify = Promise::Rejection;
        settings.speculation.lossy_lenience = 0.25;
    });
    let meta = &server.get("/v1/models/demo-target").success()["meta"];
    assert_eq!((&meta["verify"], &meta["lossy_lenience"]), (&json!("rejection"), &json!(0.25)));
    let draft = json!({ "speculative.type": "draft" });
    let lossy = server.post("/v1/completions", &seeded(1, draft.clone())).success();
    assert_eq!(lossy["timings"]["lossy_lenience"], 0.25);
    let (_, message) = server.post("/v1/completions", &seeded(1, json!({ "speculative.verify": "exact" }))).error(400);
    assert!(message.starts_with("speculative.lossy_lenience 0.25: "), "{message}");
    let lossless = json!({ "speculative.verify": "exact", "speculative.lossy_lenience": 1 });
    let lossless = server.post("/v1/completions", &seeded(31, with(draft, lossless))).success();
    assert_eq!(texts(&lossless), texts(&complete(json!({}))));
    server.shut_down();
}
