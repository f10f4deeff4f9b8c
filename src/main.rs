use std::process::ExitCode;

/// A reconcile allocates many small pieces of JSON: a quarter of its time was
/// spent in the C library's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    serin::tls::install_crypto_provider();
    serin::cli::main()
}
