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
	body     []byte
	client   *http.Client
	requests *prometheus.HistogramVec
	outgoing *prometheus.HistogramVec
}

// serve answers each request after it has called every dependency once, one after the other.
func serve(arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	listen := flags.String("listen", ":8080", "address to listen on")
	calls := flags.String("calls", "", "URLs to call for each request, separated by commas")
	timeout := flags.Duration("timeout", 5*time.Second, "timeout of a call")
	size := flags.Int("answer", 3, "bytes of an answer")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	s := newService(*calls, *timeout)
	s.body = []byte(strings.Repeat("k", max(*size-1, 0)) + "\n")
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.handle)
	mux.HandleFunc("/healthz", func(writer http.ResponseWriter, _ *http.Request) { fmt.Fprintln(writer, "ok") })
	mux.Handle("/metrics", promhttp.Handler())
	server := &http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go func() {
		<-ctx.Done()
		_ = server.Shutdown(context.Background())
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func newService(calls string, timeout time.Duration) *service {
	s := &service{
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
			s.calls = append(s.calls, url)
		}
	}
	prometheus.MustRegister(s.requests, s.outgoing)
	return s
}

func (s *service) handle(writer http.ResponseWriter, request *http.Request) {
	started, code := time.Now(), http.StatusOK
	for _, url := range s.calls {
		if err := s.call(request.Context(), url); err != nil {
			code = http.StatusBadGateway
			http.Error(writer, err.Error(), code)
			break
		}
	}
	if code == http.StatusOK {
		_, _ = writer.Write(s.body)
	}
	s.requests.WithLabelValues(fmt.Sprint(code)).Observe(time.Since(started).Seconds())
}

func (s *service) call(ctx context.Context, url string) error {
	started := time.Now()
	code, err := get(ctx, s.client, url)
	s.outgoing.WithLabelValues(url, fmt.Sprint(code)).Observe(time.Since(started).Seconds())
	if err == nil && code != http.StatusOK {
		return fmt.Errorf("%s answered %d", url, code)
	}
	return err
}

// get returns the status code of the response, 0 without a response.
func get(ctx context.Context, client *http.Client, url string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}
