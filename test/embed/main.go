// Command embed is a program of another module that does with jobs what a container engine or a scheduler does:
//
//	embed check PID               say whether the job below PID can be dumped
//	embed dump PID DIR            dump it, which ends it
//	embed show DIR                say what the image holds
//	embed restore DIR [FROM=TO]…  restore it; a rule maps the FROMth GPU of the job to the TOth of this host
//	embed suspend PID             checkpoint the process where it runs
//
// It prints a refusal by its findings, and ends with status 3 then. The watcher is the installed cucriu-hook.
package main

import (
	"context"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/config"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"
)

func main() {
	err := run(context.Background(), os.Args[1:])
	switch {
	case err == nil:
	case preflight.Refused(err): // nothing was touched
		for _, f := range findingsOf(err) {
			fmt.Printf("refused: %s: %s\nremedy: %s\n", f.Name, f.Message, f.Remedy)
		}
		os.Exit(3)
	case errors.Is(err, hooks.ErrNotBack):
		fmt.Fprintln(os.Stderr, "the job needs attention:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// findingsOf returns the findings of a refusal. One without findings has its text alone.
func findingsOf(err error) preflight.Findings {
	if refused, is := errors.AsType[*preflight.RefusedError](err); is {
		return refused.Findings
	}
	if planned, is := errors.AsType[*checkpoint.PlanError](err); is {
		return preflight.Findings{planned.Finding}
	}
	return preflight.Findings{preflight.Found("other", err)}
}

func run(ctx context.Context, args []string) error {
	cfg, err := config.Load(os.Getenv)
	if err != nil {
		return err
	}
	hook, err := hooks.New(cfg, slog.Default())
	if err != nil {
		return err
	}
	if len(args) < 2 {
		return errors.New("usage: embed check|dump|show|restore|suspend PID|DIR …")
	}
	switch verb, args := args[0], args[1:]; verb {
	case "show":
		return show(args[0])
	case "restore":
		return restore(ctx, hook, args[0], args[1:])
	case "check", "dump", "suspend":
		pid, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		switch verb {
		case "check":
			return check(ctx, hook, pid)
		case "suspend":
			_, err = checkpoint.Suspend(ctx, hook, []int{pid})
			return err
		}
		return dump(ctx, hook, pid, args[1])
	}
	return fmt.Errorf("unknown verb %q", args[0])
}

// check prints what there is to say of a job, and fails if it would be refused.
func check(ctx context.Context, hook *hooks.Hook, pid int) error {
	findings, err := checkpoint.CheckDump(ctx, hook, pid, "", os.Getenv("CUCRIU_CRIU"))
	if err != nil {
		return err
	}
	findings = hook.Judge(findings)
	for _, f := range findings {
		fmt.Printf("%s: %s: %s\n", f.Severity, f.Name, f.Message)
	}
	return findings.Err()
}

func dump(ctx context.Context, hook *hooks.Hook, pid int, dir string) error {
	options := checkpoint.Options{Path: os.Getenv("CUCRIU_CRIU"), RPC: &rpc.CriuOpts{Pid: proto.Int32(int32(pid))}}
	result, err := checkpoint.Dump(ctx, hook, dir, options)
	if err == nil {
		fmt.Printf("dumped: %d bytes, the job stood still for %v\n", result.Bytes, result.Downtime)
	}
	return err
}

func show(dir string) error {
	img := image.Open(dir)
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	fmt.Println("image", img.ID())
	for _, p := range m.Processes {
		fmt.Printf("process %d (%s), with driver %s, saw %d GPUs\n", p.PID, p.Name, m.DriverVersion, len(p.GPUs))
	}
	return nil
}

// restore maps GPUs as the rules say. The rest is filled in.
func restore(ctx context.Context, hook *hooks.Hook, dir string, rules []string) error {
	for _, text := range rules {
		rule, err := config.ParseRule(text)
		if err != nil {
			return err
		}
		hook.Config.GPUs.Map = append(hook.Config.GPUs.Map, rule)
	}
	m, err := image.Open(dir).Manifest()
	if err != nil {
		return err
	}
	plan, err := checkpoint.PlanGPUs(ctx, hook, m)
	if err != nil {
		return preflight.AsRefusal(err)
	}
	for _, a := range plan.Assignments {
		fmt.Printf("%v -> %v: %s\n", a.From.UUID, a.To.UUID, a.Reason)
	}
	result, err := checkpoint.Restore(ctx, hook, dir, checkpoint.Options{
		Path: os.Getenv("CUCRIU_CRIU"),
		RPC:  new(rpc.CriuOpts),
	})
	if err == nil {
		fmt.Printf("restored: process %d after %v\n", result.RootPID, result.Total)
	}
	return err
}
