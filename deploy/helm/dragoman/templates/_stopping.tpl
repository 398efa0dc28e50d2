{{/*
Seconds that a pod needs from SIGTERM to its end: it goes on taking calls for drain_delay_seconds, finishes those that it
has within drain_seconds, and takes 5 at most to end (docs/drain.md). There is no preStop hook: the delay does its work.
*/}}
{{- define "dragoman.stoppingSeconds" -}}
{{- $delay := dig "drain_delay_seconds" nil .Values.config -}}
{{- $drain := dig "drain_seconds" nil .Values.config -}}
{{- addf (ternary 0 $delay (kindIs "invalid" $delay)) (ternary 30 $drain (kindIs "invalid" $drain)) 5 | ceil | int -}}
{{- end -}}

{{- define "dragoman.graceSeconds" -}}
{{- default (include "dragoman.stoppingSeconds" .) .Values.terminationGracePeriodSeconds -}}
{{- end -}}
