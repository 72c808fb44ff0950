package outboxd_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"

	"github.com/outboxd/outboxd/internal/testdb"
)

const (
	ownImage = "outboxd:local"
	loopback = "127.0.0.1"
	// observability is the profile with Prometheus and Grafana.
	observability = "observability"
)

func composeProject(t *testing.T, profiles ...string) *types.Project {
	t.Helper()
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		ConfigFiles: types.ToConfigFiles([]string{"docker-compose.yml"}),
		Environment: types.Mapping{}, // the first start needs no variable
	}, loader.WithProfiles(profiles))
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestComposeServices(t *testing.T) {
	t.Parallel()
	project := composeProject(t)

	want := map[string]map[string]string{ // service, what it waits for, until when
		"postgres":  {},
		"mailpit":   {},
		"migrate":   {"postgres": types.ServiceConditionHealthy},
		"bootstrap": {"migrate": types.ServiceConditionCompletedSuccessfully},
		"api": {
			"migrate":   types.ServiceConditionCompletedSuccessfully,
			"bootstrap": types.ServiceConditionCompletedSuccessfully,
		},
		"worker": {
			"migrate": types.ServiceConditionCompletedSuccessfully,
			"mailpit": types.ServiceConditionStarted,
		},
	}
	for name, waits := range want {
		service, ok := project.Services[name]
		if !ok {
			t.Errorf("no service %s", name)
			continue
		}
		for other, condition := range waits {
			if got := service.DependsOn[other].Condition; got != condition {
				t.Errorf("%s waits for %s until %q, want %q", name, other, got, condition)
			}
		}
		oneShot := len(waits) > 0 && service.Restart == types.RestartPolicyNo
		if !oneShot && service.Restart != types.RestartPolicyUnlessStopped {
			t.Errorf("%s: restart %q", name, service.Restart)
		}
		if !oneShot && service.HealthCheck == nil {
			t.Errorf("%s: no health check", name)
		}
	}
	if len(project.Services) != len(want) {
		t.Errorf("services %v", project.ServiceNames())
	}
	worker := project.Services["worker"]
	if n := worker.GetScale(); n != 2 {
		t.Errorf("%d workers, want 2", n)
	}
}

func TestComposeIsLockedDown(t *testing.T) {
	t.Parallel()
	for name, service := range composeProject(t, observability).Services {
		for _, port := range service.Ports {
			if port.HostIP != loopback {
				t.Errorf("%s: port %s is open to the network", name, port.Published)
			}
		}
		if !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s may gain privileges", name)
		}
		if service.Privileged || service.User == "root" || strings.HasPrefix(service.User, "0") {
			t.Errorf("%s runs as root", name)
		}
		if name == "postgres" {
			continue // its entry point starts as root and drops it
		}
		if !service.ReadOnly {
			t.Errorf("%s: the root file system is writable", name)
		}
		if !slices.Equal(service.CapDrop, []string{"ALL"}) {
			t.Errorf("%s keeps capabilities", name)
		}
		if service.Image != ownImage && service.User == "" {
			t.Errorf("%s: another's image, and no user said", name)
		}
	}
}

// Prometheus and Grafana come when they are asked for, and are given what is in
// deploy: the alerts, the dashboard, each process under the job that the alerts name.
func TestComposeObservability(t *testing.T) {
	t.Parallel()
	project := composeProject(t, observability)
	for name, mounts := range map[string]map[string]string{ // service, file of ours, where it is
		"prometheus": {"deploy/prometheus": "/etc/prometheus"},
		"grafana": {
			"deploy/grafana/provisioning": "/etc/grafana/provisioning",
			"deploy/grafana/outboxd.json": "/etc/grafana/dashboards/outboxd.json",
		},
	} {
		service, ok := project.Services[name]
		if !ok || !slices.Equal(service.Profiles, []string{observability}) {
			t.Fatalf("%s is not in the profile %s", name, observability)
		}
		if service.HealthCheck == nil || service.StopGracePeriod == nil || service.Restart != types.RestartPolicyUnlessStopped {
			t.Errorf("%s: no health check, no stop_grace_period or no restart", name)
		}
		for source, target := range mounts {
			if !slices.ContainsFunc(service.Volumes, func(v types.ServiceVolumeConfig) bool {
				return filepath.ToSlash(filepath.Clean(v.Source)) == source && v.Target == target && v.ReadOnly
			}) {
				t.Errorf("%s does not get %s at %s", name, source, target)
			}
			if _, err := os.Stat(source); err != nil {
				t.Error(err)
			}
		}
	}
	grafana := project.Services["grafana"]
	if home := grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]; home == nil || *home != "/etc/grafana/dashboards/outboxd.json" {
		t.Error("the dashboard is not what Grafana shows first")
	}
	checkScrapes(t, project)
	checkProvisioning(t)
}

// checkScrapes holds prometheus.yml to the services that it names.
func checkScrapes(t *testing.T, project *types.Project) {
	t.Helper()
	var config struct {
		RuleFiles []string `yaml:"rule_files"`
		Scrapes   []struct {
			Job    string                       `yaml:"job_name"`
			Static []struct{ Targets []string } `yaml:"static_configs"`
			DNS    []struct {
				Names []string
				Type  string
				Port  int
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	decodeYAML(t, "deploy/prometheus/prometheus.yml", &config)
	for _, file := range config.RuleFiles {
		if _, err := os.Stat(filepath.Join("deploy/prometheus", file)); err != nil {
			t.Error(err)
		}
	}
	scraped := map[string]string{} // job, address
	for _, scrape := range config.Scrapes {
		for _, static := range scrape.Static {
			scraped[scrape.Job] = strings.Join(static.Targets, ",")
		}
		for _, dns := range scrape.DNS {
			scraped[scrape.Job] = strings.Join(dns.Names, ",") + ":" + strconv.Itoa(dns.Port)
		}
	}
	for _, name := range []string{"api", "worker"} {
		address := project.Services[name].Environment["OUTBOXD_OPS_ADDR"]
		if address == nil || scraped["outboxd-"+name] != name+*address {
			t.Errorf("the job outboxd-%s scrapes %q, which %s does not listen on", name, scraped["outboxd-"+name], name)
		}
	}
	if len(config.RuleFiles) == 0 || len(scraped) != 2 {
		t.Errorf("rules %q, jobs %v", config.RuleFiles, scraped)
	}
}

// checkProvisioning holds Grafana's files to what is mounted and to Prometheus.
func checkProvisioning(t *testing.T) {
	t.Helper()
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	decodeYAML(t, "deploy/grafana/provisioning/datasources/outboxd.yml", &sources)
	if len(sources.Datasources) != 1 || sources.Datasources[0].Type != "prometheus" || sources.Datasources[0].URL != "http://prometheus:9090" {
		t.Errorf("data sources %+v", sources.Datasources)
	}
	var boards struct {
		Providers []struct {
			Type    string
			Options struct{ Path string }
		}
	}
	decodeYAML(t, "deploy/grafana/provisioning/dashboards/outboxd.yml", &boards)
	if len(boards.Providers) != 1 || boards.Providers[0].Type != "file" || boards.Providers[0].Options.Path != "/etc/grafana/dashboards" {
		t.Errorf("dashboards %+v", boards.Providers)
	}
}

func decodeYAML(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, path)), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// Every command line of ours in docker-compose.yml is one that the programs
// know: `outboxctl` is asked for the help of each.
func TestComposeCommandsExist(t *testing.T) {
	t.Parallel()
	known := programs(t)
	outboxctl := filepath.Join(t.TempDir(), "outboxctl")
	build := slices.Concat([]string{"build"}, testdb.BuildFlags(), []string{"-o", outboxctl, "./cmd/outboxctl"})
	if _, err := goCommand(build...); err != nil {
		t.Fatal(err)
	}

	check := func(service string, command []string) {
		if len(command) == 0 || !slices.Contains(known, command[0]) {
			t.Errorf("%s runs %q, which is none of %q", service, command, known)
			return
		}
		if command[0] != "outboxctl" {
			if len(command) > 1 {
				t.Errorf("%s: %s takes no arguments: %q", service, command[0], command[1:])
			}
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, outboxctl, append(slices.Clone(command[1:]), "--help")...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %q: %v\n%s", service, command, err, out)
		}
	}
	for name, service := range composeProject(t).Services {
		if service.Image != ownImage {
			continue
		}
		if service.Build == nil || service.PullPolicy != types.PullPolicyBuild {
			t.Errorf("%s: %s is built here, never pulled", name, ownImage)
		}
		check(name, service.Command)
		if service.HealthCheck != nil {
			check(name+"'s health check", service.HealthCheck.Test[1:]) // after CMD
		}
	}
}

// The curl in the file's first lines works as it is.
func TestComposeShowsItsKey(t *testing.T) {
	t.Parallel()
	key := composeProject(t).Services["bootstrap"].Environment["OUTBOXD_DEV_API_KEY"]
	if key == nil || !regexp.MustCompile(`^ob_[A-Za-z0-9]+_[A-Za-z0-9]{32,}$`).MatchString(*key) {
		t.Fatal("OUTBOXD_DEV_API_KEY is no API key")
	}
	if !strings.Contains(read(t, "docker-compose.yml"), "Bearer "+*key+"'") {
		t.Errorf("the example does not use %s", *key)
	}
}
