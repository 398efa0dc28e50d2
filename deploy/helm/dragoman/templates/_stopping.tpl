{{/*
Seconds that a pod needs from SIGTERM to its end: it goes on taking calls for drain_delay_seconds, until nobody sends it
any more, finishes those that it has within drain_seconds, and then refuses latecomers and closes: that takes a few
seconds, for which there are ten.
*/}}
{{- define "dragoman.stoppingSeconds" -}}
{{- $delay := dig "drain_delay_seconds" nil .Values.config | default 0 -}}
{{- $drain := dig "drain_seconds" nil .Values.config -}}
{{- addf $delay (ternary 30 $drain (kindIs "invalid" $drain)) 10 | ceil | int -}}
{{- end -}}

{{- define "dragoman.graceSeconds" -}}
{{- default (include "dragoman.stoppingSeconds" .) .Values.terminationGracePeriodSeconds -}}
{{- end -}}
