//! Another admission webhook, which is slow: it lets the API server carry a request out long after Quorate admitted it, or
//! refuses what Quorate admitted.
//!
//! The API server calls validating webhooks at the same time and waits for all of them, up to 30 s. Evictions are decided by
//! a mutating webhook, and so before this one is called.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::routing::post;
use parking_lot::Mutex;
use quorate_devcluster::apiserver::Server;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::http::Http;

const ADDRESS: &str = "127.200.0.1:443";

/// The name of the webhook, which the message of a refusal has.
pub const NAME: &str = "slow.example.com";

/// The longest delay, in milliseconds: below the timeout of the webhook.
const LONGEST: u64 = 28_000;

/// A webhook that delays what clients request, while it is slow.
#[derive(Clone)]
pub struct SlowHook {
    state: Arc<Mutex<Delays>>,
}

struct Delays {
    /// By namespace: how many provocations make it slow.
    slow: std::collections::BTreeMap<String, usize>,
    /// How the requests for single pods are treated, the latest last.
    treated: Vec<(u64, Treated)>,
    last_id: u64,
    random: ChaCha8Rng,
}

/// How the requests for a pod are treated.
struct Treated {
    namespace: String,
    name: String,
    delay: Duration,
    allowed: bool,
}

/// Makes the webhook slow in a namespace while it lives.
#[must_use = "dropping it ends the delays"]
pub struct Slow {
    hook: SlowHook,
    namespace: String,
}

impl Drop for Slow {
    fn drop(&mut self) {
        if let Some(count) = self.hook.state.lock().slow.get_mut(&self.namespace) {
            *count -= 1;
        }
    }
}

/// Delays or refuses the requests for one pod that arrive while it lives.
#[must_use = "dropping it ends the treatment"]
pub struct Treatment {
    hook: SlowHook,
    id: u64,
}

impl Drop for Treatment {
    fn drop(&mut self) {
        self.hook.state.lock().treated.retain(|(id, _)| *id != self.id);
    }
}

impl SlowHook {
    /// Serves and registers the webhook.
    pub async fn start(api: &Server, admin: &Http, seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        let delays = Delays { slow: Default::default(), treated: Vec::new(), last_id: 0, random };
        let hook = Self { state: Arc::new(Mutex::new(delays)) };
        let router = axum::Router::new().route("/review", post(review)).with_state(hook.clone());
        api.attach_webhook(ADDRESS, router);
        let rule = |operations: Value, resource: &str| json!({"operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]});
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "slow"},
            "webhooks": [{
                "name": NAME, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail", "timeoutSeconds": 30,
                "clientConfig": {"url": format!("https://{ADDRESS}/review")},
                "rules": [rule(json!(["CREATE"]), "pods/eviction"), rule(json!(["DELETE", "UPDATE"]), "pods")],
            }],
        });
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        admin.post(path, &configuration).await;
        hook
    }

    /// Makes the webhook slow in a namespace.
    pub fn slow(&self, namespace: &str) -> Slow {
        *self.state.lock().slow.entry(namespace.to_owned()).or_default() += 1;
        Slow { hook: self.clone(), namespace: namespace.to_owned() }
    }

    /// Lets what clients request for a pod wait, and then be carried out.
    pub fn delay(&self, namespace: &str, name: &str, delay: Duration) -> Treatment {
        self.treat(namespace, name, delay, true)
    }

    /// Refuses what clients request for a pod.
    pub fn refuse(&self, namespace: &str, name: &str) -> Treatment {
        // Quorate decides deletes and updates while this webhook is called: it must have written its claim by then.
        self.treat(namespace, name, Duration::from_secs(1), false)
    }

    fn treat(&self, namespace: &str, name: &str, delay: Duration, allowed: bool) -> Treatment {
        let mut state = self.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        let treated = Treated { namespace: namespace.to_owned(), name: name.to_owned(), delay, allowed };
        state.treated.push((id, treated));
        Treatment { hook: self.clone(), id }
    }

    /// Only what clients request is slow: controllers and kubelets would stand still otherwise.
    /// Returns the delay, and whether the request is allowed after it.
    fn answer(&self, request: &Value) -> (Duration, bool) {
        let mut state = self.state.lock();
        let namespace = request["namespace"].as_str().unwrap_or_default();
        let slow = state.slow.get(namespace).is_some_and(|count| *count > 0);
        let client = request["userInfo"]["username"].as_str().is_some_and(|user| user.starts_with("client-"));
        let of_pod = |(_, it): &&(u64, Treated)| it.namespace == namespace && request["name"] == *it.name;
        if client && let Some((_, treated)) = state.treated.iter().rev().find(of_pod) {
            return (treated.delay, treated.allowed);
        }
        if !slow || !client || state.random.random_bool(0.2) {
            return (Duration::ZERO, true);
        }
        let delay = state.random.random_range(100..LONGEST);
        (Duration::from_millis(delay), state.random.random_bool(0.85))
    }
}

async fn review(State(hook): State<SlowHook>, Json(review): Json<Value>) -> Json<Value> {
    let (delay, allowed) = hook.answer(&review["request"]);
    tokio::time::sleep(delay).await;
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], "allowed": allowed}}))
}
