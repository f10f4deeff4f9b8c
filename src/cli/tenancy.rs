//! Flags about what the authors of Canaries and templates may cause.

use crate::tenancy::{Cidr, Tenancy, TenantAddresses};

#[derive(clap::Args)]
#[command(next_help_heading = "Tenants")]
pub(super) struct TenancyArgs {
    /// Refuse Canaries that name an AnalysisTemplate or AlertProvider of another
    /// namespace, and with it the credentials of that namespace
    #[arg(long, env = "SERIN_NO_CROSS_NAMESPACE_REFS")]
    no_cross_namespace_refs: bool,

    /// Addresses to which templates, webhooks and AlertProviders must not lead, such
    /// as 10.0.0.0/8, separated by commas. Link-local addresses, at which clouds serve
    /// credentials, are always among them
    #[arg(long, env = "SERIN_DENY_CIDR", value_name = "CIDRS", value_delimiter = ',')]
    deny_cidr: Vec<Cidr>,

    /// Addresses to which they may lead although they are denied
    #[arg(long, env = "SERIN_ALLOW_CIDR", value_name = "CIDRS", value_delimiter = ',')]
    allow_cidr: Vec<Cidr>,

    /// Roles that AnalysisTemplates without a secretRef may have the controller assume
    /// for CloudWatch, separated by commas; ClusterAnalysisTemplates may name any
    #[arg(long, env = "SERIN_ALLOW_AWS_ROLE", value_name = "ARNS", value_delimiter = ',')]
    allow_aws_role: Vec<String>,
}

impl From<TenancyArgs> for Tenancy {
    fn from(args: TenancyArgs) -> Self {
        let TenancyArgs { no_cross_namespace_refs, deny_cidr, allow_cidr, allow_aws_role } = args;
        Self {
            no_cross_namespace_refs,
            addresses: TenantAddresses::new(allow_cidr, deny_cidr),
            aws_roles: allow_aws_role,
        }
    }
}
