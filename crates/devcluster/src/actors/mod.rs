//! Scheduler, kubelets and controllers.
