package app

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"

	"github.com/outboxd/outboxd/outbox"
)

// stopTimes are how long programs may take to end, with a configuration whose time
// for a send is the given one.
func stopTimes(t *testing.T, send time.Duration) map[string]time.Duration {
	t.Helper()
	cfg := Config{Providers: []string{"smtp"}, SMTP: SMTPConfig{URL: "smtp://localhost?tls=none"}, SendTimeout: Duration(send), SuppressOn: []string{"off"}}
	worker, err := cfg.WorkerConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	times, err := worker.Times()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]time.Duration{
		"api":    stopTimeout + flushTimeout,
		"worker": times.SoftStop + stopTimeout + flushTimeout,
	}
}

// isKnown names the variables that the programs read, and those that the SDK does.
func isKnown(name string) bool {
	return slices.Contains(variableNames(reflect.TypeFor[Config](), ""), name) || strings.HasPrefix(name, "OTEL_")
}

// checkStop holds the time that a program is given to what it needs.
func checkStop(t *testing.T, where, program string, given, send time.Duration) {
	t.Helper()
	needs, ok := stopTimes(t, send)[program]
	if ok && given <= needs {
		t.Errorf("%s: %s is killed after %v and may need %v", where, program, given, needs)
	}
}

func TestComposeLetsProgramsEnd(t *testing.T) {
	t.Parallel()
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		ConfigFiles: types.ToConfigFiles([]string{root + "docker-compose.yml"}), Environment: types.Mapping{},
	}, loader.WithProfiles([]string{"observability"}))
	if err != nil {
		t.Fatal(err)
	}
	for name, service := range project.Services {
		if service.Image != "outboxd:local" {
			continue
		}
		for variable := range service.Environment {
			if !isKnown(variable) && variable != "OUTBOXD_DEV_API_KEY" {
				t.Errorf("%s is told %s, which nothing reads", name, variable)
			}
		}
		if service.StopGracePeriod == nil {
			if name == "api" || name == "worker" {
				t.Errorf("%s has no stop_grace_period", name)
			}
			continue
		}
		send, err := time.ParseDuration(*service.Environment["OUTBOXD_SEND_TIMEOUT"])
		if err != nil {
			t.Fatal(err)
		}
		checkStop(t, "docker-compose.yml", name, time.Duration(*service.StopGracePeriod), send)
	}
}

// unit is a systemd unit: the values of each name, in their order.
type unit map[string][]string

func readUnit(t *testing.T, path string) unit {
	t.Helper()
	u := unit{}
	for line := range strings.Lines(string(readFile(t, path))) {
		line = strings.TrimSpace(line)
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			u[name] = append(u[name], value)
		}
	}
	return u
}

func (u unit) one(t *testing.T, name string) string {
	t.Helper()
	if len(u[name]) != 1 {
		t.Fatalf("%s is there %d times", name, len(u[name]))
	}
	return u[name][0]
}

// The units run programs that exist, as nobody, for as long as they need.
func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]struct{ program, restart string }{
		"outboxd-api.service":     {"api", "always"},
		"outboxd-worker@.service": {"worker", "always"},
		"outboxd-migrate.service": {"outboxctl migrate up", ""},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			u := readUnit(t, "deploy/systemd/"+path)
			if got := u.one(t, "ExecStart"); got != "/opt/outboxd/bin/"+want.program {
				t.Errorf("runs %q", got)
			}
			for _, hardening := range []string{
				"DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=",
				"MemoryDenyWriteExecute=yes", "PrivateDevices=yes",
			} {
				if name, value, _ := strings.Cut(hardening, "="); u.one(t, name) != value {
					t.Errorf("%s is %q", name, u[name])
				}
			}
			if !slices.Contains(u["EnvironmentFile"], "/etc/outboxd/outboxd.env") {
				t.Error("no configuration")
			}
			for _, setting := range u["Environment"] {
				if name, _, _ := strings.Cut(setting, "="); !isKnown(name) {
					t.Errorf("is told %s, which nothing reads", name)
				}
			}
			if want.restart == "" {
				return
			}
			if u.one(t, "Restart") != want.restart || u.one(t, "StartLimitIntervalSec") != "0" {
				t.Error("is not started again for ever")
			}
			given, err := time.ParseDuration(u.one(t, "TimeoutStopSec"))
			if err != nil {
				t.Fatal(err)
			}
			checkStop(t, path, want.program, given, outbox.DefaultSendTimeout)
		})
	}
}

// systemd itself knows every setting of the units.
func TestSystemdKnowsTheUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd here")
	}
	dir := t.TempDir()
	paths, err := filepath.Glob(root + "deploy/systemd/*.service")
	if err != nil || len(paths) != 3 {
		t.Fatalf("units %q, error %v", paths, err)
	}
	args := []string{"verify", "--recursive-errors=no"}
	for _, path := range paths {
		// The programs are not installed here.
		text := regexp.MustCompile(`(?m)^ExecStart=/opt/outboxd/bin/\w+`).ReplaceAllString(
			string(readFile(t, strings.TrimPrefix(path, root))), "ExecStart=/bin/true")
		copied := filepath.Join(dir, strings.Replace(filepath.Base(path), "@.", "@1.", 1))
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, copied)
	}
	if out, err := exec.CommandContext(t.Context(), analyze, args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// manifest is what matters of a Kubernetes object.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Data       map[string]string
	Spec       struct {
		Replicas    int
		Selector    selector
		PodSelector selector `yaml:"podSelector"`
		Template    struct {
			Metadata struct{ Labels map[string]string }
			Spec     pod
		}
		MaxUnavailable int `yaml:"maxUnavailable"`
	}
}

type selector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

type pod struct {
	Grace           int   `yaml:"terminationGracePeriodSeconds"`
	Token           *bool `yaml:"automountServiceAccountToken"`
	SecurityContext struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		RunAsUser      int                   `yaml:"runAsUser"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Containers []container
}

type container struct {
	Name, Image string
	Command     []string
	EnvFrom     []struct {
		ConfigMapRef struct{ Name string } `yaml:"configMapRef"`
		SecretRef    struct{ Name string } `yaml:"secretRef"`
	} `yaml:"envFrom"`
	Env   []struct{ Name, Value string }
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	LivenessProbe  probe `yaml:"livenessProbe"`
	ReadinessProbe probe `yaml:"readinessProbe"`
	Lifecycle      struct {
		PreStop struct{ Sleep struct{ Seconds int } }
	}
	SecurityContext struct {
		Escalation   *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities struct{ Drop []string }
	} `yaml:"securityContext"`
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

func readManifests(t *testing.T) (all []manifest) {
	t.Helper()
	paths, err := filepath.Glob(root + "deploy/kubernetes/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("manifests %q, error %v", paths, err)
	}
	for _, path := range paths {
		decoder := yaml.NewDecoder(strings.NewReader(string(readFile(t, strings.TrimPrefix(path, root)))))
		for {
			var m manifest
			err := decoder.Decode(&m)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			all = append(all, m)
		}
	}
	return all
}

func TestKubernetesManifests(t *testing.T) {
	t.Parallel()
	all := readManifests(t)
	objects, images := map[string]manifest{}, map[string]bool{}
	for _, m := range all {
		objects[m.Kind+" "+m.Metadata.Name] = m
	}
	config := objects["ConfigMap outboxd"].Data
	for name := range config {
		if !isKnown(name) {
			t.Errorf("the ConfigMap has %s, which nothing reads", name)
		}
	}
	send, err := time.ParseDuration(config["OUTBOXD_SEND_TIMEOUT"])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Job outboxd-migrate", "Deployment outboxd-api", "Deployment outboxd-worker"} {
		m := objects[name]
		if len(m.Spec.Template.Spec.Containers) != 1 {
			t.Fatalf("%s has %d containers", name, len(m.Spec.Template.Spec.Containers))
		}
		c := m.Spec.Template.Spec.Containers[0]
		images[c.Image] = true
		checkPod(t, name, m.Spec.Template.Spec, c)
		if m.Kind == "Deployment" {
			checkDeployment(t, objects, m, c)
			given := time.Duration(m.Spec.Template.Spec.Grace-c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
			checkStop(t, name, c.Command[0], given, send)
		}
	}
	if len(images) != 1 || images["registry.example.com/outboxd:latest"] {
		t.Errorf("images %v, want one of a fixed version", images)
	}
	if len(objects) != len(all) {
		t.Error("two objects have the same name")
	}
}

// checkPod wants a pod that may do nothing but run its program.
func checkPod(t *testing.T, name string, p pod, c container) {
	t.Helper()
	s := c.SecurityContext
	if !p.SecurityContext.RunAsNonRoot || p.SecurityContext.RunAsUser != 65532 || p.SecurityContext.SeccompProfile.Type != "RuntimeDefault" ||
		p.Token == nil || *p.Token || s.Escalation == nil || *s.Escalation || !s.ReadOnly || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
		t.Errorf("%s may do too much: %+v %+v", name, p.SecurityContext, s)
	}
	if len(c.EnvFrom) != 2 || c.EnvFrom[0].ConfigMapRef.Name != "outboxd" || c.EnvFrom[1].SecretRef.Name != "outboxd" {
		t.Errorf("%s is not configured: %+v", name, c.EnvFrom)
	}
	if programs := []string{"api", "worker", "outboxctl"}; len(c.Command) == 0 || !slices.Contains(programs, c.Command[0]) {
		t.Errorf("%s runs %q", name, c.Command)
	}
	for _, variable := range c.Env {
		if !isKnown(variable.Name) {
			t.Errorf("%s is told %s, which nothing reads", name, variable.Name)
		}
	}
}

// checkDeployment wants ports that the program listens on, probes that it answers,
// and a budget and a network policy that are about its pods.
func checkDeployment(t *testing.T, objects map[string]manifest, m manifest, c container) {
	t.Helper()
	name, labels := m.Metadata.Name, m.Spec.Template.Metadata.Labels
	listens := map[string]string{"OUTBOXD_ADDR": "http", "OUTBOXD_OPS_ADDR": "ops"}
	ports := map[string]string{}
	for _, variable := range c.Env {
		ports[listens[variable.Name]] = strings.TrimPrefix(variable.Value, ":")
	}
	for _, p := range c.Ports {
		if ports[p.Name] != strconv.Itoa(p.ContainerPort) {
			t.Errorf("%s: port %s is %d, and the program listens on %q", name, p.Name, p.ContainerPort, ports[p.Name])
		}
	}
	if len(c.Ports) != len(ports) {
		t.Errorf("%s: ports %v", name, c.Ports)
	}
	for probed, path := range map[probe]string{c.LivenessProbe: "/healthz", c.ReadinessProbe: "/readyz"} {
		if probed.HTTPGet.Path != path || probed.HTTPGet.Port != "ops" {
			t.Errorf("%s: a probe asks %+v, want %s", name, probed.HTTPGet, path)
		}
	}
	for what, s := range map[string]selector{
		"itself": m.Spec.Selector, "its budget": objects["PodDisruptionBudget "+name].Spec.Selector,
		"its network policy": objects["NetworkPolicy "+name].Spec.PodSelector,
	} {
		if len(s.MatchLabels) == 0 || !reflect.DeepEqual(s.MatchLabels, labels) {
			t.Errorf("%s: %s is about %v", name, what, s.MatchLabels)
		}
	}
	if m.Spec.Replicas < 2 || objects["PodDisruptionBudget "+name].Spec.MaxUnavailable != 1 {
		t.Errorf("%s: a node that is drained takes all of its pods", name)
	}
}
