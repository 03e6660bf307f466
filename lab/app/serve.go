package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Upper bounds in seconds: 0.5 ms doubled twelve times, to 2 s.
var buckets = prometheus.ExponentialBuckets(0.0005, 2, 13)

type service struct {
	calls    []string
	said     []byte
	client   *http.Client
	requests *prometheus.HistogramVec
	outgoing *prometheus.HistogramVec
}

// serve answers every request after it has called each dependency once, one after the other.
func serve(arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	listen := flags.String("listen", ":8080", "address to listen on")
	calls := flags.String("calls", "", "URLs to call for each request, with commas between them")
	timeout := flags.Duration("timeout", 5*time.Second, "of one call")
	size := flags.Int("answer", 3, "bytes of an answer")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	one := newService(*calls, *timeout)
	one.said = []byte(strings.Repeat("k", max(*size-1, 0)) + "\n")
	mux := http.NewServeMux()
	mux.HandleFunc("/", one.answer)
	mux.HandleFunc("/healthz", func(writer http.ResponseWriter, _ *http.Request) { fmt.Fprintln(writer, "ok") })
	mux.Handle("/metrics", promhttp.Handler())
	server := &http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	told, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go func() {
		<-told.Done()
		_ = server.Shutdown(context.Background())
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func newService(calls string, timeout time.Duration) *service {
	one := &service{
		client: &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "app_request_duration_seconds", Help: "Time to answer a request, its own calls included.", Buckets: buckets,
		}, []string{"code"}),
		outgoing: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "app_call_duration_seconds", Help: "Time of a call to a dependency.", Buckets: buckets,
		}, []string{"url", "code"}),
	}
	for _, url := range strings.Split(calls, ",") {
		if url != "" {
			one.calls = append(one.calls, url)
		}
	}
	prometheus.MustRegister(one.requests, one.outgoing)
	return one
}

func (one *service) answer(writer http.ResponseWriter, request *http.Request) {
	started, code := time.Now(), http.StatusOK
	for _, url := range one.calls {
		if err := one.call(request.Context(), url); err != nil {
			// A dependency that fails is its caller's failure, as it is for most applications.
			code = http.StatusBadGateway
			http.Error(writer, err.Error(), code)
			break
		}
	}
	if code == http.StatusOK {
		_, _ = writer.Write(one.said)
	}
	one.requests.WithLabelValues(fmt.Sprint(code)).Observe(time.Since(started).Seconds())
}

func (one *service) call(ctx context.Context, url string) error {
	started := time.Now()
	code, err := get(ctx, one.client, url)
	one.outgoing.WithLabelValues(url, fmt.Sprint(code)).Observe(time.Since(started).Seconds())
	if err == nil && code != http.StatusOK {
		return fmt.Errorf("%s answered %d", url, code)
	}
	return err
}

// get returns the code of the answer, 0 without one.
func get(ctx context.Context, client *http.Client, url string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}
