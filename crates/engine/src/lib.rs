//! Decides who may be disrupted now.
