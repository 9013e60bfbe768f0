// Runs every feature check with the Go client and prints one line for each: "passed NAME" or "failed NAME: why".
// Arguments: the name servers, the master's address, and a word that all topics and groups begin with; more arguments name the
// only checks to run.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const atOnce = 12

type check struct {
	name string
	run  func(*place)
}

func main() {
	rlog.SetLogLevel("fatal")
	servers := strings.Split(os.Args[1], ";")
	var checks []check
	checks = append(checks, slowChecks()...)
	checks = append(checks, consumeChecks()...)
	checks = append(checks, sendChecks()...)
	only := os.Args[4:]
	turns := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	var output sync.Mutex
	for _, each := range checks {
		if len(only) > 0 && !slices.Contains(only, each.name) {
			continue
		}
		running.Add(1)
		go func(each check) {
			turns <- struct{}{}
			began := time.Now()
			failure := run(each, &place{nameServers: servers, master: os.Args[2], prefix: os.Args[3], name: each.name})
			output.Lock()
			if failure == "" {
				fmt.Printf("passed %s (%d ms)\n", each.name, time.Since(began).Milliseconds())
			} else {
				fmt.Printf("failed %s: %s (%d ms)\n", each.name, failure, time.Since(began).Milliseconds())
			}
			output.Unlock()
			<-turns
			running.Done()
		}(each)
	}
	running.Wait()
}

// run returns why the check failed, or nothing.
func run(each check, where *place) (failure string) {
	defer where.close()
	defer func() {
		if found := recover(); found != nil {
			failure = strings.Join(strings.Fields(fmt.Sprint(found)), " ")
			if failure == "" {
				failure = "it panicked"
			}
		}
	}()
	each.run(where)
	return ""
}
