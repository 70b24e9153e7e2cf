//! OpenKruise's PodUnavailableBudgets, served by Quorate.

mod announced;
mod answers;
mod clone_set;
mod endings;
mod groups;
mod neighbours;
mod served;
mod together;
mod updates;

use quorate_testbed::{Answer, Patch, eventually};
use serde_json::{Value, json};

use crate::town::{Town, is};

pub(crate) const VERSION: &str = "policy.kruise.io/v1alpha1";

/// A budget over the pods with a label app.
pub(crate) fn over(app: &str, number: &str, amount: impl Into<Value>) -> Value {
    json!({"selector": {"matchLabels": {"app": app}}, number: amount.into()})
}

impl Town {
    fn unavailable_budgets(&self) -> String {
        format!("/apis/{VERSION}/namespaces/{}/podunavailablebudgets", self.namespace)
    }

    /// Makes a PodUnavailableBudget with these annotations; it is not waited for.
    async fn new_pub(&self, name: &str, annotations: Value, spec: Value) -> Answer {
        let budget = json!({
            "apiVersion": VERSION, "kind": "PodUnavailableBudget",
            "metadata": {"name": name, "annotations": annotations}, "spec": spec,
        });
        self.wire.post(&self.unavailable_budgets(), &budget).await
    }

    /// Makes a PodUnavailableBudget, and waits until it is enforced, for every operation, and allows so much.
    pub(crate) async fn pub_over(&self, name: &str, spec: Value, allowed: u32) {
        self.new_pub(name, json!({}), spec).await.expect(201);
        tokio::join!(self.pub_allows(name, allowed), self.asked_about_updates());
    }

    pub(crate) async fn pub_status(&self, name: &str) -> Value {
        self.wire.get(&format!("{}/{name}", self.unavailable_budgets())).await.expect(200)["status"].clone()
    }

    /// Waits until a PodUnavailableBudget is enforced and allows so much.
    async fn pub_allows(&self, name: &str, allowed: u32) {
        self.pub_is(name, &format!("it allows {allowed}"), |status| {
            is(status, "Enforced", "True") && status["unavailableAllowed"] == allowed
        })
        .await;
    }

    /// Waits until the status of a PodUnavailableBudget is as it should be.
    async fn pub_is(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{name}: {what}"), || async {
            let status = self.pub_status(name).await;
            if is(&status) { Ok(status) } else { Err(status) }
        })
        .await
    }

    async fn change_pub(&self, name: &str, patch: &Value) -> Answer {
        self.wire.patch(&format!("{}/{name}", self.unavailable_budgets()), Patch::Merge, patch).await
    }

    async fn delete_pub(&self, name: &str) {
        self.wire.delete(&format!("{}/{name}", self.unavailable_budgets()), &json!({})).await.expect(200);
    }

    /// Changes a pod by a merge patch.
    async fn change_pod(&self, pod: &str, patch: &Value) -> Answer {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace);
        self.wire.patch(&path, Patch::Merge, patch).await
    }

    /// Pods made by hand, web-0 and so on.
    pub(crate) async fn pods_of(&self, app: &str, count: usize) {
        for number in 0..count {
            self.pod(&format!("{app}-{number}"), json!({"app": app})).await;
        }
    }
}
