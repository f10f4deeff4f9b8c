use std::process::ExitCode;

fn main() -> ExitCode {
    serin::cli::main()
}
