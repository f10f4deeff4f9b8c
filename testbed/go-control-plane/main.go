// A minimal control plane on go-control-plane's SnapshotCache, for `make bench-xds`: the same
// clusters, endpoints, listeners and routes as Serin serves, one snapshot for each node, all of
// them set again at a change, as in that project's own examples.
//
// It prints `ready PORT`, and for each line `weight N` on its standard input (N hundredths of a
// percent to the canary) sets the snapshots and prints `done`.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

var (
	proxies   = flag.Int("proxies", 1, "number of nodes, proxy-0 and so on")
	services  = flag.Int("services", 0, "number of services besides web")
	upstreams = flag.Int("upstreams", 0, "how many of them a node calls")
	concerned = flag.Int("concerned", 1, "how many nodes call web")
	listen    = flag.String("listen", "127.0.0.1:15001", "where a node listens for requests to web")
	primary   = flag.String("primary", "127.0.0.1:1", "address of the primary")
	canary    = flag.String("canary", "127.0.0.1:1", "address of the canary")
)

// Resources that are the same for all nodes, by name.
type shared struct {
	clusters, endpoints, routes map[string]types.Resource
}

func main() {
	flag.Parse()
	snapshots := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	all := shared{map[string]types.Resource{}, map[string]types.Resource{}, map[string]types.Resource{}}
	for name, address := range map[string]string{"web": *primary, "web-primary": *primary, "web-canary": *canary} {
		all.add(name, address)
	}
	for n := 0; n < *services; n++ {
		all.add(service(n), *primary)
	}
	version := 0
	set := func(weight uint32) {
		version++
		name := full("web")
		all.routes[name] = routes(name, &route.RouteAction{ClusterSpecifier: &route.RouteAction_WeightedClusters{
			WeightedClusters: &route.WeightedCluster{Clusters: []*route.WeightedCluster_ClusterWeight{
				{Name: full("web-primary"), Weight: wrapperspb.UInt32(10000 - weight)},
				{Name: full("web-canary"), Weight: wrapperspb.UInt32(weight)},
			}},
		}})
		for n := 0; n < *proxies; n++ {
			snapshot, err := all.snapshot(n, strconv.Itoa(version))
			check(err)
			check(snapshots.SetSnapshot(context.Background(), "proxy-"+strconv.Itoa(n), snapshot))
		}
	}
	set(0)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	serving := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(serving, server.NewServer(context.Background(), snapshots, nil))
	go func() { check(serving.Serve(socket)) }()
	fmt.Println("ready", socket.Addr().(*net.TCPAddr).Port)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		weight, err := strconv.ParseUint(strings.TrimPrefix(lines.Text(), "weight "), 10, 32)
		check(err)
		set(uint32(weight))
		fmt.Println("done")
	}
}

func service(n int) string { return "service-" + strconv.Itoa(n) }

func full(name string) string { return "shop/" + name + ":80" }

func (all *shared) add(short, address string) {
	name := full(short)
	all.clusters[name] = &cluster.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_EDS},
		EdsClusterConfig:     &cluster.Cluster_EdsClusterConfig{EdsConfig: ads()},
		ConnectTimeout:       durationpb.New(2 * time.Second),
	}
	all.endpoints[name] = &endpoint.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpoint.LocalityLbEndpoints{{LbEndpoints: []*endpoint.LbEndpoint{{
			HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: socketAddress(address)}},
		}}}},
	}
	all.routes[name] = routes(name, &route.RouteAction{ClusterSpecifier: &route.RouteAction_Cluster{Cluster: name}})
}

// What a node calls, and where it listens for it.
func (all *shared) snapshot(n int, version string) (*cache.Snapshot, error) {
	called := map[string]string{}
	if n < *concerned {
		called["web"] = *listen
	}
	for k := 0; k < *upstreams; k++ {
		index := (n**upstreams + k) % *services
		called[service(index)] = fmt.Sprintf("127.1.%d.%d:15001", index/250, index%250+1)
	}
	resources := map[resource.Type][]types.Resource{}
	for short, address := range called {
		name := full(short)
		clusters := []string{name}
		if short == "web" {
			clusters = append(clusters, full("web-primary"), full("web-canary"))
		}
		for _, name := range clusters {
			resources[resource.ClusterType] = append(resources[resource.ClusterType], all.clusters[name])
			resources[resource.EndpointType] = append(resources[resource.EndpointType], all.endpoints[name])
		}
		resources[resource.ListenerType] = append(resources[resource.ListenerType], egress(name, address))
		resources[resource.RouteType] = append(resources[resource.RouteType], all.routes[name])
	}
	return cache.NewSnapshot(version, resources)
}

func routes(name string, action *route.RouteAction) *route.RouteConfiguration {
	return &route.RouteConfiguration{
		Name: name,
		VirtualHosts: []*route.VirtualHost{{
			Name:    name,
			Domains: []string{"*"},
			Routes: []*route.Route{{
				Match:  &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}},
				Action: &route.Route_Route{Route: action},
			}},
		}},
		ValidateClusters: wrapperspb.Bool(true),
	}
}

func egress(name, address string) *listener.Listener {
	connections := &manager.HttpConnectionManager{
		StatPrefix: strings.NewReplacer("/", "_", ":", "_").Replace(name),
		RouteSpecifier: &manager.HttpConnectionManager_Rds{
			Rds: &manager.Rds{ConfigSource: ads(), RouteConfigName: name},
		},
		HttpFilters: []*manager.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &manager.HttpFilter_TypedConfig{TypedConfig: pack(&router.Router{})},
		}},
	}
	return &listener.Listener{
		Name:    "egress/" + name,
		Address: socketAddress(address),
		FilterChains: []*listener.FilterChain{{Filters: []*listener.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listener.Filter_TypedConfig{TypedConfig: pack(connections)},
		}}}},
	}
}

func ads() *core.ConfigSource {
	return &core.ConfigSource{
		ResourceApiVersion:    core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
	}
}

func socketAddress(text string) *core.Address {
	host, port, err := net.SplitHostPort(text)
	check(err)
	number, err := strconv.ParseUint(port, 10, 16)
	check(err)
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: host, PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(number)},
	}}}
}

func pack(message proto.Message) *anypb.Any {
	packed, err := anypb.New(message)
	check(err)
	return packed
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
