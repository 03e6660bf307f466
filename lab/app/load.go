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

// load sends requests at a set rate, whether or not earlier ones were answered, as users who know nothing of each other do.
func load(arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	url := flags.String("url", "", "what to ask for")
	rate := flags.Float64("rate", 10, "requests per second")
	duration := flags.Duration("duration", 30*time.Second, "how long")
	warmUp := flags.Duration("warm-up", 5*time.Second, "how long before that, without counting")
	timeout := flags.Duration("timeout", 10*time.Second, "of one request")
	fresh := flags.Bool("fresh", false, "a connection of its own for each request, as of users who come once")
	seed := flags.Uint64("seed", 0, "of the times of requests, as users come by chance; 0 for one after the other, evenly")
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

// gapsBetween gives the time from each request to the next: always the same, or exponential as those of a Poisson process.
func gapsBetween(rate float64, seed uint64) func() time.Duration {
	mean := float64(time.Second) / rate
	if seed == 0 {
		return func() time.Duration { return time.Duration(mean) }
	}
	random := rand.New(rand.NewPCG(seed, seed))
	return func() time.Duration { return time.Duration(random.ExpFloat64() * mean) }
}

type reply struct {
	took time.Duration
	err  error
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
	found := outcome{Requests: len(replies)}
	var took []float64
	for _, one := range replies {
		if one.err != nil {
			found.Errors++
			found.LastError = one.err.Error()
			continue
		}
		took = append(took, float64(one.took.Microseconds())/1000)
	}
	sort.Float64s(took)
	found.P50Ms, found.P99Ms = percentile(took, 0.5), percentile(took, 0.99)
	return found
}

// percentile is the smallest value that is not below the share of all values (nearest rank); 0 of none.
func percentile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(math.Ceil(share*float64(len(sorted))))-1]
}
