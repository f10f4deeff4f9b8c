use std::process::ExitCode;

fn main() -> ExitCode {
    serin::tls::choose_cryptography();
    serin::cli::main()
}
