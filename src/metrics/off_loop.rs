//! Reading of large responses off the controller's only thread, within a budget.
//!
//! A tenant's server decides what it responds. A response that takes longer to read than
//! the budget is [`OverBudget`], which the Canary has in its status; its thread ends by
//! itself, since a response is bounded, and one measurement of a metric runs at a time.

use std::time::Duration;

/// Smaller ones are read on the loop, as most are.
const SMALL: usize = 64 << 10;

const READ_BUDGET: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("responded with {} KiB that take longer than {READ_BUDGET:?} to read", .bytes >> 10)]
pub struct OverBudget {
    bytes: usize,
}

/// Runs `read` over a response of so many bytes.
pub async fn read<T: Send + 'static>(
    bytes: usize,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OverBudget> {
    if bytes <= SMALL {
        return Ok(read());
    }
    match tokio::time::timeout(READ_BUDGET, tokio::task::spawn_blocking(read)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failed)) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        // The runtime ends, or time is up.
        Ok(Err(_)) | Err(_) => Err(OverBudget { bytes }),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn a_large_response_is_read_on_another_thread() {
        let here = thread::current().id();
        let on = |bytes| read(bytes, || thread::current().id());
        assert_eq!(on(SMALL).await, Ok(here));
        assert_ne!(on(SMALL + 1).await.expect("read"), here);
    }

    #[tokio::test]
    async fn a_response_over_budget_is_given_up_while_others_go_on() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let endless = tokio::spawn(read(1 << 20, move || ended.recv()));
        assert_eq!(read(1 << 20, || 7).await, Ok(7));
        let error = endless.await.expect("a task").expect_err("over budget");
        assert_eq!(error.to_string(), "responded with 1024 KiB that take longer than 2s to read");
        drop(end);
    }
}
