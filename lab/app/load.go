package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"sort"
	"sync"
	"time"
)

type outcome struct {
	P50Ms     float64 `json:"p50_ms"`
	P99Ms     float64 `json:"p99_ms"`
	Requests  int     `json:"requests"`
	Errors    int     `json:"errors"`
	LastError string  `json:"last_error,omitempty"`
}

// load sends requests at a fixed rate, also while earlier ones wait for an answer, as independent users do.
func load(arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	url := flags.String("url", "", "URL to request")
	rate := flags.Float64("rate", 10, "requests per second")
	duration := flags.Duration("duration", 30*time.Second, "duration of the measurement")
	warmUp := flags.Duration("warm-up", 5*time.Second, "time before that, without counting")
	timeout := flags.Duration("timeout", 10*time.Second, "timeout of a request")
	fresh := flags.Bool("fresh", false, "use a new connection for each request")
	seed := flags.Uint64("seed", 0, "seed of the random times of requests; 0 for equal intervals")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *url == "" || *rate <= 0 {
		return fmt.Errorf("--url is needed, and a --rate above 0")
	}
	client := &http.Client{Timeout: *timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableKeepAlives: *fresh}}
	gaps := gapsBetween(*rate, *seed)
	send(client, *url, gaps, *warmUp)
	return json.NewEncoder(os.Stdout).Encode(summarise(send(client, *url, gaps, *duration)))
}

// gapsBetween returns the time from each request to the next: constant, or exponential as in a Poisson process.
func gapsBetween(rate float64, seed uint64) func() time.Duration {
	mean := float64(time.Second) / rate
	if seed == 0 {
		return func() time.Duration { return time.Duration(mean) }
	}
	random := rand.New(rand.NewPCG(seed, seed))
	return func() time.Duration { return time.Duration(random.ExpFloat64() * mean) }
}

type reply struct {
	latency time.Duration
	err     error
}

func send(client *http.Client, url string, gap func() time.Duration, duration time.Duration) []reply {
	var group sync.WaitGroup
	var lock sync.Mutex
	var replies []reply
	next := time.Now()
	for ends := next.Add(duration); next.Before(ends); next = next.Add(gap()) {
		time.Sleep(time.Until(next))
		group.Go(func() {
			started := time.Now()
			code, err := get(context.Background(), client, url)
			if err == nil && code != http.StatusOK {
				err = fmt.Errorf("%s answered %d", url, code)
			}
			lock.Lock()
			defer lock.Unlock()
			replies = append(replies, reply{time.Since(started), err})
		})
	}
	group.Wait()
	return replies
}

func summarise(replies []reply) outcome {
	result := outcome{Requests: len(replies)}
	var latenciesMs []float64
	for _, reply := range replies {
		if reply.err != nil {
			result.Errors++
			result.LastError = reply.err.Error()
			continue
		}
		latenciesMs = append(latenciesMs, float64(reply.latency.Microseconds())/1000)
	}
	sort.Float64s(latenciesMs)
	result.P50Ms, result.P99Ms = percentile(latenciesMs, 0.5), percentile(latenciesMs, 0.99)
	return result
}

// percentile returns the nearest-rank percentile, 0 without values.
func percentile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(math.Ceil(share*float64(len(sorted))))-1]
}
